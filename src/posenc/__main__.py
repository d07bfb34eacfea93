"""`python -m posenc`."""

from posenc_cli.main import main

if __name__ == "__main__":
    main()

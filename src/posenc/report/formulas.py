"""One line of formula for each page of `posenc show`.

i and j are the positions of a query and a key, p that of either, D the channels of a head, d those
that turn, θ_i = base^(−2i/d) the speed of pair i, s the factor, L the trained length.
"""

__all__ = ["FORMULAS"]

FORMULAS: dict[str, str] = {
    "none": "softmax(q·k / √D) v",
    "sinusoidal": "x + PE(p), PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(the same)",
    "learned": "x + weight[p + offset]",
    "axial-sinusoidal": "x + [PE(row), PE(column)], sinusoids of dim / 2 channels each",
    "axial-learned": "x + [rows[p_0], columns[p_1]], or their sum",
    "fourier": "x + [sin 2πpF, cos 2πpF], p real coordinates, F drawn once",
    "rope": "pair i of q and k at position p turns by p · base^(−2i/d)",
    "learned-scale-rope": "pair i turns by scale · p · base^(−2i/d), scale learned",
    "xpos": "as rope, and pair i of q times ζ_i^(p/512), of k divided by it; "
    "ζ_i = (2i/d + γ) / (1 + γ)",
    "axial-rope": "half of the pairs turn by row · θ_i, the other half by column · θ_i",
    "mixed-rope": "pair t turns by row · a_t + column · b_t, both learned",
    "mrope": "pair i turns by p_a(i) · θ_i, a(i) its coordinate: time, row or column",
    "t5": "q·k + weight[bucket(j − i), head]",
    "alibi": "q·k / √D − m_h · (i − j), m_h = 2^(−8h/H) for heads h = 1 … H",
    "kerple": "q·k / √D − r1 · ln(1 + r2 · |i − j|), or − r1 · |i − j|^r2",
    "sandwich": "q·k / √D + H/(8h) · Σ_m cos((i − j) / base^(2m/width)), m < width/2",
    "fire": "q·k / √D + MLP(ψ(i − j) / ψ(max(threshold, i))), ψ(x) = ln(c·x + 1)",
    "shaw": "(q·k + q·a_K[clip(j − i)]) / √D, and Σ w (v + a_V[clip(j − i)])",
    "transformer-xl": "((q + u)·k + (q + v)·W R[i − j]) / √D, R sinusoids, u and v learned",
    "deberta": "(q·k + q·K_r[δ] + k·Q_r[δ]) / √(3D), δ the bucket of i − j",
    "cope": "q·k / √D + q·e[p], p the sum of sigmoid(q·k / √D) over keys from j up to i",
    "decomposed": "q·k / √D + q·R_row[Δrow] + q·R_column[Δcolumn]",
    "swin": "q·k / √D + weight[Δrow, Δcolumn, head]",
    "axes": "q·k / √D + scale · Σ_a bias_a(i_a − j_a), a over the coordinates",
    "swinv2": "logit + 16 · sigmoid(MLP(sign(Δ) · log2(1 + 8|Δ|/(n − 1)) / 3)), of both Δ",
    "beit": "q·k / √D + weight[Δrow, Δcolumn, head], three more rows for the class token",
    "learned+rope": "x + weight[p]; then pair i of q and k turns by p · θ_i",
    "linear": "θ_i / s",
    "ntk": "base · s^(d/(d−2)) for the base",
    "dynamic-ntk": "base · (s·n/L − (s − 1))^(d/(d−2)) for n > L tokens, base up to L",
    "ntk-by-parts": "γ_i · θ_i + (1 − γ_i) · θ_i / s, γ falling from 1 (32 turns in L) to 0 (1 turn)",
    "yarn": "γ_i · θ_i + (1 − γ_i) · θ_i / s as in ntk-by-parts; cos and sin times 0.1 ln s + 1",
    "llama3": "γ_i · θ_i + (1 − γ_i) · θ_i / s, γ_i = (turns in L − low) / (high − low) in [0, 1]",
    "proportional": "θ_i / s for the fastest share of the pairs, 0 for the others",
    "longrope": "θ_i / short[i] up to L tokens, θ_i / long[i] beyond; cos and sin times a factor",
    "qwen-ntk": "ntk with s = 2^ceil(log2(n/L) + 1) − 1 for n > L tokens, 1 up to L",
}

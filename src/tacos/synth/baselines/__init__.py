"""Well-known algorithms, for comparison and for the networks that they were designed for.

With n members, buffers of S bytes, latency α and β seconds per byte, an all-reduce costs

====================  =======================================  ====================================
ring                  2(n-1)α + 2(n-1)/n Sβ                    Patarasuk and Yuan, 2009
bidirectional-ring    2⌊n/2⌋α + (n-1)/n Sβ                     every block half-way round, both ways
direct                2α + 2/n Sβ with links between all,      reduce-scatter, then all-gather
                      2α + 2(n-1)/n Sβ through one port
one-shot              α + Sβ or α + (n-1)Sβ, likewise          every NPU sends everything
halving-doubling      2 lg n α + 2(n-1)/n Sβ                   Rabenseifner, 2004
double-binary-tree    (2d + K)(α + Sβ/K) per tree, depth d,    Sanders, Speck and Träff, 2009; NCCL
                      K chunks, S half of the buffer
c-cube                the same with a link for each edge       C-Cube: Cho et al., 2023
bruck                 2⌈lg n⌉α + 2(n-1)/n Sβ                   Bruck et al., 1997
2d-ring               2⌊n₀/2⌋α + (n₀-1)/n₀ Sβ/2, and with n₁   rings of rows, then of columns
hierarchical          Σ 2(nᵢ-1)αᵢ + 2(nᵢ-1)/nᵢ S/(n₀…nᵢ₋₁)βᵢ   BlueConnect: Cho et al., 2019
swing                 as halving-doubling, with short hops     Swing: De Sensi et al., 2024
themis                2(n-1)/n S / Σ 1/βᵢ with many chunks     Themis: Rashidi et al., 2022
multitree             2(n-1)/n Sβ / links per NPU, nearly      MultiTree: Huang et al., 2021
parameter-server      2α + (n+1)Sβ at a central server         k servers share the work
in-network            2α + (1 + h)Sβ through switches that     SwitchML: Sapio et al., 2021; h for
                      add up                                   headers, or the pool's limit
nccl                  rings over all NICs, trees or NVLS       what stock NCCL chooses
====================  =======================================  ====================================

if members wait for each other after every step. Here no member waits, so times can be shorter, and
with several chunks the steps overlap. The trees of most algorithms are in :mod:`tacos.synth.baselines.block_trees`, and
:mod:`tacos.synth.moves` derives the collectives from them. Messages take the network's default routes. A chunk count
that is left open becomes 1; the caller may search for a better one.
"""

from __future__ import annotations

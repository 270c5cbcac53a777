"""LIBRA's published jobs and networks, and its model's results for them, entered by hand.

Jobs cover two transformer layers, or one step of a data-parallel model. Times are in ms, bandwidths in GB/s.
"""

from __future__ import annotations

from tacos.design import Call, Compute, Group, TrainingJob

NETWORKS = {"4D": "ring:4*fc:8*ring:4*switch:32", "3D": "ring:16*fc:8*switch:32"}


def _hybrid(name, compute_ms, tensor, gradients):
    """Tensor parallelism over `tensor` ranks and data parallelism over the others."""
    inner = Group(tensor)
    return TrainingJob(
        (
            Compute(compute_ms / 1e3),
            Call("all-reduce", 805_306_368, inner, 8),
            Call("all-gather", 805_306_368, inner, 2),
            Call("all-reduce", gradients, Group(4096 // tensor, tensor), background=True),
        ),
        name,
        4096,
    )


def _data_parallel(name, compute_ms, gradients):
    return TrainingJob((Compute(compute_ms / 1e3), Call("all-reduce", gradients)), name, 4096)


JOBS = {
    "GPT-3": _hybrid("GPT-3", 684.448242, 16, 452_984_832),
    "MSFT-1T": _hybrid("MSFT-1T", 169.995114, 128, 226_492_416),
    "T-NLG": _data_parallel("T-NLG", 327.148662, 869_449_728),
    "ResNet-50": _data_parallel("ResNet-50", 1.095314, 51_005_824),
}

# Job, network, total bandwidth, time of the even split, least time, its bandwidths, time at the least time*cost, and
# time*cost of the even split divided by that minimum.
ROWS = [
    ("GPT-3", "4D", 100, 1137.433, 874.266, (67.69, 16.92, 11.63, 3.76), 977.301, 6.929),
    ("GPT-3", "4D", 500, 775.045, 722.412, (338.45, 84.61, 58.16, 18.78), 813.452, 6.754),
    ("GPT-3", "4D", 1000, 729.747, 703.430, (676.9, 169.2, 116.3, 37.56), 775.668, 6.994),
    ("GPT-3", "3D", 100, 1115.916, 899.407, (79.51, 18.00, 2.49), 949.120, 5.697),
    ("GPT-3", "3D", 1000, 727.595, 705.944, (795.1, 180.0, 24.91), 730.624, 5.191),
    ("MSFT-1T", "4D", 100, 622.414, 368.451, (64.35, 18.77, 2.01, 14.87), 495.682, 5.510),
    ("MSFT-1T", "4D", 500, 260.479, 209.686, (321.75, 93.84, 10.05, 74.35), 268.830, 5.162),
    ("MSFT-1T", "4D", 1000, 215.237, 189.841, (643.5, 187.7, 20.11, 148.7), 239.882, 5.357),
    ("MSFT-1T", "3D", 100, 590.846, 368.451, (80.44, 4.69, 14.87), 458.510, 4.952),
    ("MSFT-1T", "3D", 1000, 212.080, 189.841, (804.4, 46.92, 148.7), 217.570, 4.512),
    ("T-NLG", "4D", 100, 379.316, 344.533, (75.02, 21.88, 2.34, 0.76), 377.848, 7.323),
    ("T-NLG", "4D", 1000, 332.365, 328.887, (750.2, 218.8, 23.44, 7.57), 343.181, 7.778),
    ("T-NLG", "3D", 100, 376.055, 344.533, (93.77, 5.47, 0.76), 351.123, 5.438),
    ("ResNet-50", "4D", 100, 4.156, 2.115, (75.02, 21.88, 2.34, 0.76), 2.115, 11.400),
    ("ResNet-50", "4D", 1000, 1.401, 1.197, (750.2, 218.8, 23.44, 7.57), 1.320, 7.422),
    ("ResNet-50", "3D", 100, 3.964, 2.115, (93.77, 5.47, 0.76), 2.115, 9.277),
]

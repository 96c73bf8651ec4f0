"""Convolution and pooling of images that lie with the batch last, compiled for this processor by numba.

    out[o, y, x, :] = bias[o] + Σ_taps weight · images[c, y + dy, x + dx, :]

A tap is one weight of a kernel. Each product is a scalar times a row of neighbouring numbers, one an image: that
keeps a processor's vector units busy whatever the number of channels, and a weight that is zero costs nothing. Taps go
by fours, so that sums are read and written a quarter as often.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

CHUNK = 256  # images at a time: their rows stay in the processor's caches
# Sums in any order, but NaN and infinity are told as always.
_compiled = numba.njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True, cache=True, error_model="numpy")


@_compiled
def _find(first: Any, taps: Any, shape: Any, o: int, y: int, x: int, rows: Any, which: Any) -> int:
    """The rows that output o reads at a place, and by which taps; their number, filled up to fours with tap T."""
    count = 0
    for t in range(first[o], first[o + 1]):
        row, column = y + taps[t, 1], x + taps[t, 2]
        if 0 <= row < shape[1] and 0 <= column < shape[2]:
            rows[count], which[count] = (taps[t, 0] * shape[1] + row) * shape[2] + column, t
            count += 1
    while count % 4:
        rows[count], which[count] = rows[count - 1], len(taps)
        count += 1
    return count


@_compiled
def correlate(images: Any, out: Any, bias: Any, first: Any, taps: Any, weights: Any, begin: int, end: int) -> None:
    """Writes the sums above for the images from ``begin`` to ``end``; outside of an image all is zero.

    Args:
        images: (C, H, W, B).
        out: (O, H', W', B).
        bias: (O,).
        first: (O + 1,): output o has the taps from first[o] to first[o + 1].
        taps: (T, 3): c, dy, dx.
        weights: (T + 1,), the last one zero.
        begin: the first image.
        end: the one after the last.
    """
    flat = images.reshape(-1, images.shape[3])
    rows, which = np.empty(len(taps) + 3, np.int64), np.empty(len(taps) + 3, np.int64)
    for start in range(begin, end, CHUNK):
        stop = min(start + CHUNK, end)
        for y in range(out.shape[1]):
            for o in range(out.shape[0]):
                for x in range(out.shape[2]):
                    sums = out[o, y, x, start:stop]
                    sums[:] = bias[o]
                    for t in range(0, _find(first, taps, images.shape, o, y, x, rows, which), 4):
                        i0, i1 = flat[rows[t], start:stop], flat[rows[t + 1], start:stop]
                        i2, i3 = flat[rows[t + 2], start:stop], flat[rows[t + 3], start:stop]
                        w0, w1 = weights[which[t]], weights[which[t + 1]]
                        w2, w3 = weights[which[t + 2]], weights[which[t + 3]]
                        for b in range(len(sums)):
                            sums[b] += w0 * i0[b] + w1 * i1[b] + w2 * i2[b] + w3 * i3[b]


@_compiled
def weigh(images: Any, gradient: Any, first: Any, taps: Any, sums: Any, begin: int, end: int) -> None:
    """Adds the gradient of each tap's weight to ``sums`` (T + 1,), the last of no use; the rest as in ``correlate``."""
    flat = images.reshape(-1, images.shape[3])
    rows, which = np.empty(len(taps) + 3, np.int64), np.empty(len(taps) + 3, np.int64)
    for start in range(begin, end, CHUNK):
        stop = min(start + CHUNK, end)
        for y in range(gradient.shape[1]):
            for o in range(gradient.shape[0]):
                for x in range(gradient.shape[2]):
                    above = gradient[o, y, x, start:stop]
                    for t in range(0, _find(first, taps, images.shape, o, y, x, rows, which), 4):
                        i0, i1 = flat[rows[t], start:stop], flat[rows[t + 1], start:stop]
                        i2, i3 = flat[rows[t + 2], start:stop], flat[rows[t + 3], start:stop]
                        s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                        for b in range(len(above)):
                            s0 += above[b] * i0[b]
                            s1 += above[b] * i1[b]
                            s2 += above[b] * i2[b]
                            s3 += above[b] * i3[b]
                        sums[which[t]] += s0
                        sums[which[t + 1]] += s1
                        sums[which[t + 2]] += s2
                        sums[which[t + 3]] += s3


@_compiled
def pool(images: Any, out: Any, begin: int, end: int) -> None:
    """The largest of two by two pixels: (C, H, W, B) to (C, H // 2, W // 2, B)."""
    for c in range(out.shape[0]):
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                largest = out[c, y, x, begin:end]
                i0, i1 = images[c, 2 * y, 2 * x, begin:end], images[c, 2 * y, 2 * x + 1, begin:end]
                i2, i3 = images[c, 2 * y + 1, 2 * x, begin:end], images[c, 2 * y + 1, 2 * x + 1, begin:end]
                for b in range(len(largest)):
                    largest[b] = np.maximum(np.maximum(i0[b], i1[b]), np.maximum(i2[b], i3[b]))


@_compiled
def unpool(images: Any, pooled: Any, above: Any, out: Any, begin: int, end: int) -> None:
    """The gradient of ``pool``: each share goes to the first of the largest; odd rows and columns of ``out`` stay."""
    left = np.empty(end - begin, np.float32)
    for c in range(pooled.shape[0]):
        for y in range(pooled.shape[1]):
            for x in range(pooled.shape[2]):
                left[:] = above[c, y, x, begin:end]
                largest = pooled[c, y, x, begin:end]
                for place in range(4):
                    pixel = images[c, 2 * y + place // 2, 2 * x + place % 2, begin:end]
                    share = out[c, 2 * y + place // 2, 2 * x + place % 2, begin:end]
                    for b in range(len(share)):
                        share[b] = left[b] if pixel[b] == largest[b] else np.float32(0)
                        left[b] -= share[b]  # to zero, once it has been given away

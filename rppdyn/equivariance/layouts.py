r"""Action of a transformation of images on what a network makes of them: feature maps, tokens, flattened maps, vectors.

Behind a layer, :class:`Placed` says which entries are which pixels, and moves them as the flow moves images:

* **Entries that were only moved about** (reshape, permute, flatten, a class token in front) take their pixels with them, so
  that such a layer loses nothing. It is found by a trial with labels for entries, and so holds for any function.
* **Layers that keep the sizes of the axes along which pixels lie** (pointwise maps, linear maps of channels, normalisation,
  attention, sums) keep the pixels, whatever the channels become. Of a flattened map, pointwise ones alone do.
* **Patches** whose pixels were put beside one another as channels, and then mixed, are pixels of a coarser image.
* **Maps of another resolution** (strides, pooling) are images of that resolution.
* **Vectors** (after a mean over places, a class token, a linear map of a flattened map) stay as they are: the trivial action.

Elsewhere nothing is said (windows that are folded into the batch, scores of attention written out), and layers are taken
together with those that read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rppdyn.equivariance.actions import Flow, TrivialFlow


@dataclass(frozen=True, eq=False)
class Placed(Flow):
    """A flow of images on tensors ``(batch, *shape)`` in which entry ``index[c, i, j]`` is channel c at row i, column j.

    Entries that are in no pixel stay as they are.

    Args:
        index: index of the flattened entries.
    """

    flow: Flow
    shape: tuple[int, ...]
    index: Int[Tensor, "channels rows columns"]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The flow's own."""
        return self.flow.name

    def __call__(self, x: Float[Tensor, "batch ..."], t: Tensor | float) -> Float[Tensor, "batch ..."]:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"{self.name} acts on (batch, {', '.join(map(str, self.shape))}) here, not {tuple(x.shape)}"
            )
        index = self.index.to(x.device)
        entries = x.flatten(1)
        moved = self.flow(entries[:, index], t)
        return entries.index_copy(1, index.flatten(), moved.flatten(1)).view_as(x)


def tokens(flow: Flow, rows: int, columns: int, channels: int, *, before: int = 0) -> Placed:
    """The action on tokens ``(batch, before + rows * columns, channels)``, the first ``before`` of which are in no pixel.

    >>> from rppdyn.equivariance import images
    >>> tokens(images.rotation(), 7, 7, 64, before=1).shape      # one class token
    (50, 64)
    """
    places = torch.cat([torch.full((before,), -1), torch.arange(rows * columns)])
    return _placed(flow, places[:, None].expand(-1, channels), (rows, columns))


def action_behind(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], actions: Sequence[Flow], output: Tensor, flow: Flow
) -> Flow | None:
    """The action on a layer's output as the module's text says; None where it says nothing.

    Args:
        function, inputs, output: the layer, its inputs at some images and what it makes of them.
        actions: on the inputs.
        flow: flow of images.
    """
    layouts = [_layout(action, x, flow) for action, x in zip(actions, inputs, strict=True)]
    if not any(layout is not None for layout in layouts):
        return TrivialFlow(flow.name)
    if len(output) != len(inputs[0]) or output.ndim < 2:
        return None
    grids = {layout.index.shape[1:] for layout in layouts if layout is not None}
    if len(grids) == 1 and (moved := _moved_about(function, inputs, layouts, flow)) is not None:
        return moved
    flows: list[Flow] = []
    for x, layout in zip(inputs, layouts, strict=True):
        if layout is not None and (carried := _kept(function, inputs, x, layout, output)) is not None:
            if not any(_same(carried, other) for other in flows):
                flows.append(carried)
    if flows:
        return flows[0] if len(flows) == 1 else None
    return TrivialFlow(flow.name) if output.ndim == 2 else None


def _layout(action: Flow, x: Tensor, flow: Flow) -> Placed | None:
    """Layout of pixels; None where there are none, or one."""
    if isinstance(action, Placed):
        return action
    if isinstance(action, TrivialFlow) or x.ndim != 4 or x.shape[2] * x.shape[3] == 1:
        return None
    return Placed(flow, tuple(x.shape[1:]), torch.arange(x[0].numel()).view(x.shape[1:]))


def _places(layout: Placed) -> Int[Tensor, "..."]:
    """The pixel of each entry, -1 of those in none."""
    places = torch.full((math.prod(layout.shape),), -1)
    count = layout.index.shape[1] * layout.index.shape[2]
    places[layout.index.flatten(1)] = torch.arange(count)
    return places.view(layout.shape)


def _placed(flow: Flow, places: Int[Tensor, "..."], grid: Sequence[int]) -> Placed:
    """From the pixel of each entry, of which every channel has all; the plain flow's layout is that of maps."""
    order = places.flatten().argsort(stable=True)
    order = order[int((places < 0).sum()) :]
    return Placed(flow, tuple(places.shape), order.view(grid[0], grid[1], -1).permute(2, 0, 1))


def _simple(action: Placed) -> Flow:
    """The flow itself, of maps."""
    plain = action.shape == tuple(action.index.shape) and bool(
        (action.index.flatten() == torch.arange(action.index.numel())).all()
    )
    return action.flow if plain else action


def _same(a: Flow, b: Flow) -> bool:
    if isinstance(a, Placed) and isinstance(b, Placed):
        return a.shape == b.shape and torch.equal(a.index, b.index)
    return type(a) is type(b)


def _moved_about(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], layouts: Sequence[Placed | None], flow: Flow
) -> Flow | None:
    """The action behind a function each entry of whose output is an entry of an input, or a constant."""
    generator = torch.Generator().manual_seed(0)
    sources = []
    for _ in range(2):
        labels = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in inputs]
        sorted_labels, order = torch.cat([label[0].flatten() for label in labels]).sort()
        out = function(*(label.clone() for label in labels))
        at = torch.searchsorted(sorted_labels, out[0].flatten().contiguous()).clamp_max(len(order) - 1)
        known = sorted_labels[at] == out[0].flatten()
        sources.append((torch.where(known, order[at], -1), out[0]))
    (source, value), (again, second) = sources
    if not torch.equal(source, again) or not bool((source >= 0).any()):
        return None
    fixed = source < 0
    if not torch.equal(value.flatten()[fixed], second.flatten()[fixed]):
        return None
    # by entry of all inputs: its channel, numbered over inputs, and its pixel
    channel, place, channels = [], [], 0
    for x, layout in zip(inputs, layouts, strict=True):
        size = x[0].numel()
        channels_of = torch.full((size,), -1)
        if layout is not None:
            count = layout.index.shape[0]
            channels_of[layout.index.flatten(1)] = torch.arange(channels, channels + count)[:, None]
            place.append(_places(layout).flatten())
            channels += count
        else:
            place.append(torch.full((size,), -1))
        channel.append(channels_of)
    grid = next(layout.index.shape[1:] for layout in layouts if layout is not None)
    pixels = grid[0] * grid[1]
    keep = (~fixed).cpu() & (torch.cat(place)[source.cpu()] >= 0)
    entries = keep.nonzero().flatten()
    if not len(entries):
        return TrivialFlow(flow.name)
    key = torch.cat(channel)[source.cpu()[entries]] * pixels + torch.cat(place)[source.cpu()[entries]]
    order = key.argsort(stable=True)
    present, counts = key.unique(return_counts=True)
    if len(present) % pixels or not bool((counts == counts[0]).all()):
        return None
    if not torch.equal(present.view(-1, pixels) % pixels, torch.arange(pixels).expand(len(present) // pixels, -1)):
        return None
    index = entries[order].view(-1, *grid, int(counts[0])).permute(0, 3, 1, 2).reshape(-1, *grid)
    return _simple(Placed(flow, tuple(value.shape), index))


def _kept(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], x: Tensor, layout: Placed, output: Tensor
) -> Flow | None:
    """The action on an output with axes for pixels where the input has them."""
    places, grid = _places(layout), layout.index.shape[1:]
    if output.ndim != x.ndim:
        return None
    shape = output.shape[1:]
    axes = [a for a in range(places.ndim) if not bool((places == places.narrow(a, 0, 1)).all())]
    others = [a for a in range(places.ndim) if a not in axes]
    along = places
    for a in others:
        along = along.narrow(a, 0, 1)
    if all(shape[a] == places.shape[a] for a in axes):
        inside = int((along >= 0).sum())
        mixed = inside > grid[0] * grid[1] or not others  # channels lie along these axes, too, or there is one
        if mixed and not _is_pointwise(function, inputs, x):
            return _coarse(places, grid, shape, layout.flow)
        return _simple(_placed(layout.flow, along.expand(shape), grid))
    if (patched := _coarse(places, grid, shape, layout.flow)) is not None:
        return patched
    if len(axes) == 2 and [places.shape[a] for a in axes] == list(grid):
        rows, columns = (shape[a] for a in axes)
        if rows * columns == 1:
            return TrivialFlow(layout.name)
        coarse = torch.arange(rows * columns).view([shape[a] if a in axes else 1 for a in range(len(shape))])
        return _simple(_placed(layout.flow, coarse.expand(shape), (rows, columns)))
    return None


def _coarse(places: Int[Tensor, "..."], grid: Sequence[int], shape: Sequence[int], flow: Flow) -> Flow | None:
    """The action on an output with axes for patches, where pixels of a patch were put beside one another as channels."""
    if bool((places < 0).any()):
        return None
    row, column = places // grid[1], places % grid[1]
    for size in range(2, max(grid) + 1):
        if any(side % size for side in grid):
            continue
        coarse = [side // size for side in grid]
        numbers = (row // size, column // size, row // size * coarse[1] + column // size)
        axes = [_axis(number, shape) for number in numbers]
        along = [
            None if a is None else torch.arange(shape[a]).view([-1 if b == a else 1 for b in range(len(shape))])
            for a in axes
        ]
        rows, columns, both = along
        if rows is not None and columns is not None and axes[0] != axes[1]:
            both = rows * coarse[1] + columns
        if both is not None:
            return _simple(_placed(flow, both.expand(tuple(shape)), coarse))
    return None


def _axis(number: Int[Tensor, "..."], shape: Sequence[int]) -> int | None:
    """The axis along which entries are numbered so, in places and in an output alike."""
    for a, size in enumerate(number.shape):
        along = torch.arange(size).view([-1 if b == a else 1 for b in range(number.ndim)])
        if size == shape[a] and size > 1 and bool((number == along).all()):
            return a
    return None


def _is_pointwise(function: Callable[..., Tensor], inputs: Sequence[Tensor], x: Tensor) -> bool:
    """Check whether one entry of an input changes no other entry of the output."""
    before = function(*(v.clone() for v in inputs))
    entry = x[0].numel() // 2
    changed = x.clone()
    changed[0].view(-1)[entry] += 1 + changed[0].view(-1)[entry].abs()
    after = function(*(changed if v is x else v.clone() for v in inputs))
    different = (before - after)[0].flatten().nonzero().flatten()
    return bool((different == entry).all())

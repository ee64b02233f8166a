"""Open the data of a loader as a `Feed`, which lists the units that the loader deals, and gathers their sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from nopad.errors import OptionError
from nopad.loading.feeds import Feed, StoredRows, StoredTokens, planned
from nopad.loading.groups import Groups, Together
from nopad.loading.limited import IMAGES, PackedImages
from nopad.loading.mixed import MixedTokens
from nopad.loading.mixture import Mixture
from nopad.loading.sources import TokenSource, open_tokens
from nopad.options import check_choice, check_sizes, shown
from nopad.store import PackedDataset, open_packed
from nopad.store.manifest import MANIFEST

__all__ = ["open_feed"]


def open_feed(
    data: Any,
    capacity: int | None,
    *,
    unpacked: bool,
    seed: int,
    groups: int | ArrayLike | None = None,
    together: Together = "rank",
    images: int | None = None,
    **options: Any,
) -> Feed:
    """Return the feed of `data`, which lists what a loader deals in an epoch.

    The loader deals packs, if a `capacity` is given; single sequences or groups, if `unpacked` is True; otherwise the
    rows of a packed dataset, as they are stored. `groups` says which sequences stay together, and `together` what they
    share. `images` is the maximum number of images per pack. `options` are those of a plan (`nopad.plan`), or ``plan``
    itself. `PackedLoader` describes them all.

    Raises:
        OptionError: one of these:

            * stored rows are to be dealt (no `capacity`, `unpacked` is False), and `data` is not a packed dataset that
              holds its tokens
            * options of a plan are given, and nothing is planned
            * `together` is not "rank", and there are no groups
            * `unpacked` is True, and `together` is "pack" or the groups differ in size
            * groups are given for stored rows; or groups or ``plan`` are given for a mixture
            * `images` is given with groups, a mixture, or an option other than `effort`
            * `images` is given for data without images, or where nothing is packed
            * an option has an invalid value, or `depth` is given with groups
            * ``plan`` is given with other options of a plan, except `align`
        LengthError: a sequence or group is longer than `capacity`, a sequence has more images than `images`, or a
            sequence has no token.
        PlanMismatchError: the option `plan` is for other lengths or another capacity, or has a pack that does not fit
            with `align`.
        SourceError, FormatError, CorruptError, RecordError, StorageError, MissingExtraError: the data cannot be opened,
            as for `open_tokens` and `open_packed`.
    """
    checked, _ = check_sizes(1 if capacity is None else capacity, None, seed)
    capacity, seed = None if capacity is None else checked, int(seed)
    together = check_choice("together", together, Together)
    if together != "rank" and groups is None:
        raise OptionError(
            f"together is {shown(together)}, and is about groups of sequences; give groups, or leave it out"
        )
    if images is not None:
        images = int(IMAGES.check("images", images))
        _check_images(data, capacity, groups, options)
    if isinstance(data, Mixture):
        if groups is not None or (capacity is None and not unpacked):
            raise OptionError("a mixture is packed anew in every epoch, without groups: give a capacity, or sequences")
        if capacity is None:
            _refuse(options)
        elif "plan" in options:
            raise OptionError("a mixture has another plan in every epoch; leave plan out")
        return MixedTokens(data, capacity, seed=seed, **options)
    if capacity is not None or unpacked:
        source = data if isinstance(data, TokenSource) else open_tokens(data)
        if images is not None and capacity is not None:
            return PackedImages(source, capacity, images, seed=seed, **options)
        grouped = None if groups is None else Groups.of(groups, len(source))
        if unpacked and together == "pack":
            raise OptionError("together is 'pack', and sequences are not packed; choose 'rank' or 'step'")
        if capacity is not None:
            plan = planned(source, capacity, groups=grouped, **options)
            align = options.get("align", 1)
            return StoredTokens(source, plan, groups=grouped, together=together, align=align, seed=seed)
        _refuse(options)
        return StoredTokens(source, None, groups=grouped, together=together, seed=seed)
    _refuse(options)
    if groups is not None:
        raise OptionError("rows of a packed dataset stay as they are; give a capacity to pack its sequences in groups")
    if isinstance(data, str | Path) and (Path(data) / MANIFEST).is_file():
        data = open_packed(data)
    if not isinstance(data, PackedDataset):
        raise OptionError("rows of what capacity? Give one; only the rows of a packed dataset have theirs")
    return StoredRows(data, seed=seed)


def _check_images(data: Any, capacity: int | None, groups: Any, options: dict[str, Any]) -> None:
    """Check that packs can have a limit of images.

    Raises:
        OptionError: nothing is packed, the data are a mixture, or there are groups or an `align`.
    """
    if capacity is None:
        raise OptionError("images limits the images of a pack, and nothing is packed here; leave it out")
    if isinstance(data, Mixture) or groups is not None or "align" in options:
        what = "a mixture" if isinstance(data, Mixture) else "align" if groups is None else "groups"
        raise OptionError(f"images limits the images of a pack, and does not go with {what}; leave one of both out")


def _refuse(options: dict[str, Any]) -> None:
    if options:
        raise OptionError(f"{', '.join(options)} are options of a plan, and without a capacity nothing is planned")

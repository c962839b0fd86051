//! Planes copied into owned memory: one arena for all experts of a layer, filled by several threads.
//!
//! An expert's extents are read and verified one at a time. Its planes are then copied side by side, matrix
//! by matrix. P3 and P4 are merged into one digit if the store does not already hold them merged.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use nestling_formats::nested::{Layout, merge_p3_p4, merged_bytes};
use nestling_formats::store::{Encoding, Group, PartItem, Store};
use nestling_formats::{Level, Plane};

use nestling_core::arena::AlignedBytes;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;
use nestling_core::weights::ByteRegion;

/// Alignment of parts: one cache line.
const ALIGN: usize = 64;

/// Planes of one matrix: P2, P3, P4, P6, P8, and the merged P3 and P4.
pub(super) type Planes<T> = [Option<T>; 6];

/// Index of the merged digit in [`Planes`].
pub(super) const MERGED: usize = 5;

/// Location of one plane: an extent of its group, and a byte range in it.
type ExtentRange = (Plane, Range<usize>);

/// A request to read some planes of one group.
pub(super) struct GroupRequest<'a> {
    pub group: &'a Group,
    /// Number of extents to read.
    pub planes: usize,
    /// Level of each matrix; planes above it are discarded. If empty, all planes read are kept.
    pub levels: Vec<Level>,
}

/// Source and destination ranges of one group's planes.
struct GroupPlan<'a> {
    group: &'a Group,
    planes: usize,
    from: Vec<Planes<ExtentRange>>,
    to: Vec<Planes<Range<usize>>>,
    length: usize,
}

impl<'a> GroupPlan<'a> {
    fn new(
        store: &Store,
        GroupRequest { group, planes, levels }: &GroupRequest<'a>,
    ) -> Result<Self, EngineError> {
        let (group, planes) = (*group, *planes);
        let wanted = |matrix: usize, plane: Plane| {
            levels.get(matrix).is_none_or(|level| plane.level() <= *level)
        };
        let too_large = || EngineError::mismatch(group.id.to_string(), "sizes that fit", "more");
        let mut from: Vec<Planes<ExtentRange>> = vec![Default::default(); group.matrices.len()];
        for extent in Plane::ALL.into_iter().take(planes) {
            for part in store.parts(group, extent).ok_or_else(too_large)? {
                match part.item {
                    PartItem::Merged { matrix } => {
                        from[matrix][MERGED] = Some((extent, part.range))
                    }
                    PartItem::Plane { matrix, plane } if wanted(matrix, plane) => {
                        from[matrix][plane.index()] = Some((extent, part.range));
                    }
                    PartItem::Floats { matrix } => from[matrix][0] = Some((extent, part.range)),
                    PartItem::Plane { .. } | PartItem::Tensor { .. } => {}
                }
            }
        }
        let (mut to, mut length) = (Vec::new(), 0usize);
        for (matrix, from) in group.matrices.iter().zip(&from) {
            let mut place = |bytes: usize| {
                let start = length.checked_next_multiple_of(ALIGN)?;
                length = start.checked_add(bytes)?;
                Some(start..length)
            };
            let mut planes: Planes<Range<usize>> = Default::default();
            let merged = match (layout_of(matrix.encoding), &from[1], &from[2]) {
                (Some(layout), Some(_), Some(_)) => {
                    Some(merged_bytes(layout, matrix.rows, matrix.cols).ok_or_else(too_large)?)
                }
                _ => None,
            };
            for (index, plane) in from.iter().enumerate() {
                match (plane, merged) {
                    (Some(_), Some(bytes)) if index == 1 => {
                        planes[MERGED] = Some(place(bytes).ok_or_else(too_large)?);
                    }
                    (Some(_), Some(_)) if index == 2 => {}
                    (Some((_, range)), _) => {
                        planes[index] = Some(place(range.len()).ok_or_else(too_large)?);
                    }
                    (None, _) => {}
                }
            }
            to.push(planes);
        }
        let length = length.checked_next_multiple_of(ALIGN).ok_or_else(too_large)?;
        Ok(Self { group, planes, from, to, length })
    }

    /// Reads and verifies the group's extents and copies its planes into `out`.
    fn fill(
        &self,
        store: &Store,
        extents: &mut [AlignedBytes; 5],
        out: &mut [u8],
    ) -> Result<(), EngineError> {
        for (plane, bytes) in Plane::ALL.into_iter().zip(&mut *extents).take(self.planes) {
            let extent = store.extent(self.group, plane);
            // A present extent is within the file, so this allocates at most the size of the file.
            // Default: an extent larger than the address space is refused when it is read.
            let length = extent.map_or(0, |extent| usize::try_from(extent.length).unwrap_or(0));
            if bytes.len() != length {
                // Heap memory would be retained after it is freed.
                *bytes = AlignedBytes::zeroed("an extent", length)?;
            }
            if let Some(extent) = extent {
                store.read_extent(extent, bytes.bytes_mut())?;
            }
        }
        let bytes_of = |place: &Option<ExtentRange>| -> Result<&[u8], EngineError> {
            let found = place.as_ref().and_then(|(extent, range)| {
                extents[extent.index()].as_ref().get(range.clone()) // none of a plane that is not present
            });
            let what = || format!("planes of {}", self.group.id);
            found.ok_or_else(|| EngineError::mismatch(what(), "in the store", "missing"))
        };
        for ((matrix, from), to) in self.group.matrices.iter().zip(&self.from).zip(&self.to) {
            for (from, to) in from.iter().zip(to).filter(|(from, _)| from.is_some()) {
                if let Some(out) = to.clone().and_then(|to| out.get_mut(to)) {
                    out.copy_from_slice(bytes_of(from)?);
                }
            }
            if let Some(layout) = layout_of(matrix.encoding)
                && from[MERGED].is_none()
                && let Some(out) = to[MERGED].clone().and_then(|to| out.get_mut(to))
            {
                merge_p3_p4(layout, bytes_of(&from[1])?, bytes_of(&from[2])?, out)?;
            }
        }
        Ok(())
    }
}

fn layout_of(encoding: Encoding) -> Option<Layout> {
    match encoding {
        Encoding::Nested { layout, .. } => Some(layout),
        Encoding::Float(_) => None,
    }
}

/// Planes of each matrix of one group, as returned by [`read_groups`].
pub(super) type GroupPlanes = Vec<Planes<ByteRegion>>;

/// Reads the requested planes of each group into one arena. `cancel` is checked before each group.
///
/// # Errors
/// [`EngineError::Cancelled`], or the error of the first group, in order, that cannot be read or is damaged.
pub(super) fn read_groups(
    store: &Store,
    groups: &[GroupRequest<'_>],
    threads: usize,
    cancel: &CancelToken,
) -> Result<Vec<GroupPlanes>, EngineError> {
    let plans = groups.iter().map(|group| GroupPlan::new(store, group));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    let length = plans.iter().map(|plan| plan.length).sum();
    let mut arena = AlignedBytes::zeroed("weights", length)?;
    fill_all(store, &plans, arena.bytes_mut(), threads, cancel)?;
    let arena = Arc::new(arena);
    let mut start = 0;
    let regions = plans.into_iter().map(|plan| {
        let region = |range: Range<usize>| {
            ByteRegion::new(Arc::<AlignedBytes>::clone(&arena), start + range.start, range.len())
        };
        let planes = plan.to.into_iter().map(|planes| planes.map(|plane| plane.and_then(region)));
        let planes = planes.collect();
        start += plan.length;
        planes
    });
    Ok(regions.collect())
}

fn fill_all(
    store: &Store,
    plans: &[GroupPlan<'_>],
    mut arena: &mut [u8],
    threads: usize,
    cancel: &CancelToken,
) -> Result<(), EngineError> {
    let mut jobs = Vec::with_capacity(plans.len());
    for (index, plan) in plans.iter().enumerate() {
        let (out, rest) = arena.split_at_mut(plan.length);
        jobs.push((index, plan, out));
        arena = rest;
    }
    jobs.reverse();
    let jobs = Mutex::new(jobs);
    let done: Vec<OnceLock<Result<(), EngineError>>> =
        plans.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        let mut extents = [(); 5].map(|()| AlignedBytes::empty());
        while !cancel.is_cancelled() {
            let job = whole(jobs.lock()).pop();
            // Default: all groups are taken.
            let Some((index, plan, out)) = job else { return };
            let _ = done[index].set(plan.fill(store, &mut extents, out));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(plans.len()) {
            // If a thread cannot be started, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = done.into_iter().map(OnceLock::into_inner);
    results.try_for_each(|result| result.unwrap_or(Err(EngineError::Cancelled)))
}

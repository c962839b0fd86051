//! Cuts a store to a smaller one: planes outside an allocation are not copied.

use std::path::Path;

use nestling_formats::Plane;
use nestling_formats::memory::{try_to_vec, try_zeroed};
use nestling_formats::nested::Codec;
use nestling_formats::store::{
    Group, GroupId, Index, Measures, PartItem, Store, StoreError, StorePlan, StoreWriter,
};
use serde_json::{Value, json};

use super::{
    ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport, SourceErrors,
};
use super::{check_destination, progress::Meter};
use nestling_core::CancelToken;
use nestling_core::error::EngineError;
use nestling_levels::allocation::{Allocation, ChooseOptions, Counting, choose, cut, weight_bytes};

/// Copies the part of a store that fits in `budget` bytes, counted for the whole file. Each matrix is copied
/// up to the level that the allocation for that budget gives it. The smaller store generates the same text as
/// the whole store opened with the same allocation.
///
/// The options' level limits all matrices. An interrupted cut is not resumed.
///
/// ```no_run
/// use std::path::Path;
/// use nestling_convert::convert::{ConvertOptions, cut_store};
/// use nestling_core::CancelToken;
/// use nestling_formats::store::Store;
///
/// let store = Store::open("model.nest")?;
/// let (options, cancel) = (ConvertOptions::default(), CancelToken::new());
/// let destination = Path::new("small.nest");
/// let (report, _allocation) =
///     cut_store(&store, destination, 4 << 30, &options, &cancel, &mut |_progress| ())?;
/// println!("{} bytes", report.store_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails with [`ConvertError::Budget`] if the budget is below the smallest possible store,
/// [`ConvertError::Store`], [`ConvertError::DestinationExists`], or
/// [`ConvertError::Cancelled`].
pub fn cut_store(
    store: &Store,
    destination: &Path,
    budget: u64,
    options: &ConvertOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(ConvertProgress),
) -> Result<(ConvertReport, Allocation), ConvertError> {
    check_destination(destination, options)?;
    let (allocation, plan) = allocate(store, budget, options)?;
    let writer = StoreWriter::create(destination, &plan)?;
    let mut meter = Meter::new(progress);
    let total = writer.progress_bytes().1;
    meter.begin(ConvertPhase::Cutting, total);
    let report = ConvertReport {
        path: writer.final_path().to_owned(),
        id: writer.index().id(),
        store_bytes: writer.index().length(),
        resumed_bytes: 0,
        errors: SourceErrors::default(),
    };
    for (number, slot) in (0u32..).zip(store.index().codecs()) {
        if let Some(codec) = slot.codec.as_ref().and_then(Codec::nested) {
            writer.set_codec(number, codec)?;
        }
    }
    for (from, to) in store.groups().iter().zip(writer.index().groups()) {
        if cancel.is_cancelled() {
            writer.abandon()?;
            return Err(ConvertError::Cancelled);
        }
        let bytes = copy_group(store, from, &writer, to)?;
        copy_measures(store, from, &writer, to)?;
        meter.advance(bytes, from.id.layer());
    }
    meter.begin(ConvertPhase::Finishing, 0);
    writer.finish()?;
    Ok((report, allocation))
}

/// Returns an allocation whose store has at most `budget` bytes, and the plan of that store.
fn allocate(
    store: &Store,
    budget: u64,
    options: &ConvertOptions,
) -> Result<(Allocation, StorePlan), ConvertError> {
    let index = store.index();
    let (top, counting) = (options.level.min(store.level()), Counting::File);
    let whole = Allocation::of_level(index, store.level());
    // Size of header, index and files of the whole store. A smaller store has no more extents.
    let mut other = index.length() - weight_bytes(index, &whole, counting);
    let mut best = None;
    for _ in 0..2 {
        let budget_left = budget.saturating_sub(other);
        let choice = ChooseOptions { top, budget: budget_left, counting, dense: None };
        let allocation = match choose(index, &choice) {
            Err(EngineError::WeightBudget { least, .. }) => {
                return Err(ConvertError::Budget { asked: budget, least: least + other });
            }
            Err(error) => return Err(ConvertError::Calibrate(error)),
            Ok(allocation) => allocation,
        };
        let plan = plan(store, budget, &allocation)?;
        let length = plan.index()?.length();
        if length > budget {
            break;
        }
        other = length - weight_bytes(index, &allocation, counting);
        best = Some((allocation, plan));
    }
    // Reached only if alignment enlarged the front of the smaller store.
    best.ok_or(ConvertError::Budget { asked: budget, least: budget + index.alignment() })
}

/// Returns the plan of a store that holds exactly the allocation.
fn plan(store: &Store, budget: u64, allocation: &Allocation) -> Result<StorePlan, ConvertError> {
    let index = store.index();
    let mut parameters: Value =
        serde_json::from_str(index.parameters_json()).unwrap_or(Value::Null);
    let of = json!({
        "budget": budget,
        "allocation": allocation.hash().to_string(),
        "of": index.id().to_string(),
    });
    match &mut parameters {
        Value::Object(fields) => drop(fields.insert("cut".into(), of)),
        other => *other = json!({"cut": of}),
    }
    let mut source = index.id().0.to_vec();
    source.extend(allocation.hash().0.to_le_bytes());
    let mut plan = StorePlan::new(source, parameters.to_string());
    plan.alignment = Some(index.alignment());
    if index.groups().iter().any(|group| !group.error_drops.is_empty()) {
        plan.measures = Measures::PerMatrix;
    }
    for slot in index.codecs() {
        match &slot.codec {
            Some(Codec::Scaled(codec)) => plan.add_scaled_codec(**codec),
            _ => plan.add_codec(slot.tables()),
        };
    }
    for group in index.groups() {
        match &group.id {
            GroupId::Asset { name } => plan.add_asset(name.clone(), extent_bytes(index, group)),
            id => {
                let levels = allocation.levels(id).iter();
                let matrices = group.matrices.iter().zip(levels).map(|(m, level)| cut(m, *level));
                plan.add_group(id.clone(), matrices.collect(), group.tensors.clone());
            }
        }
    }
    Ok(plan)
}

fn extent_bytes(index: &Index, group: &Group) -> u64 {
    index.extent(group, Plane::P2).map_or(0, |extent| extent.length)
}

/// Copies the parts of a group that the smaller store contains. Returns their size in bytes.
fn copy_group(
    store: &Store,
    from: &Group,
    writer: &StoreWriter,
    to: &Group,
) -> Result<u64, ConvertError> {
    let mut extents: [Option<Vec<u8>>; 5] = Default::default();
    let mut copied = 0;
    for plane in Plane::ALL.into_iter().filter(|plane| to.extents[plane.index()].is_some()) {
        let missing = || StoreError::Absent {
            file: store.name().to_owned(),
            what: format!("plane {plane:?} of {}", from.id),
        };
        let length = writer.index().extent(to, plane).ok_or_else(missing)?.length;
        let mut bytes = try_zeroed("an extent", usize::try_from(length).map_err(|_| missing())?)?;
        if matches!(from.id, GroupId::Asset { .. }) {
            bytes = try_to_vec("an extent", read(store, from, plane, &mut extents)?)?;
        } else {
            for part in to.parts(plane).ok_or_else(missing)? {
                let (extent, range) = place(from, part.item).ok_or_else(missing)?;
                let source = read(store, from, extent, &mut extents)?;
                let source = source.get(range).ok_or_else(missing)?;
                bytes.get_mut(part.range).ok_or_else(missing)?.copy_from_slice(source);
            }
        }
        writer.write_extent(&to.id, plane, &bytes)?;
        copied += length;
    }
    Ok(copied)
}

/// Returns an extent of the whole store, which is read once and cached in `extents`.
fn read<'a>(
    store: &Store,
    group: &Group,
    plane: Plane,
    extents: &'a mut [Option<Vec<u8>>; 5],
) -> Result<&'a [u8], ConvertError> {
    let slot = &mut extents[plane.index()];
    let bytes = match slot.take() {
        Some(bytes) => bytes,
        None => {
            let extent = store.extent(group, plane).ok_or_else(|| StoreError::Absent {
                file: store.name().to_owned(),
                what: format!("plane {plane:?} of {}", group.id),
            })?;
            store.read_extent_vec(extent)?
        }
    };
    Ok(slot.insert(bytes))
}

/// Returns the extent of a group that contains an item, and the item's byte range in it.
fn place(group: &Group, item: PartItem) -> Option<(Plane, std::ops::Range<usize>)> {
    Plane::ALL.into_iter().find_map(|extent| {
        let part = group.parts(extent)?.into_iter().find(|part| part.item == item)?;
        Some((extent, part.range))
    })
}

fn copy_measures(
    store: &Store,
    from: &Group,
    writer: &StoreWriter,
    to: &Group,
) -> Result<(), ConvertError> {
    if let Some(frequency) = from.frequency {
        writer.set_frequency(&to.id, frequency)?;
    }
    if let Some(square) = from.weight_square {
        writer.set_weight_square(&to.id, square)?;
    }
    for plane in Plane::ALL.into_iter().filter(|plane| to.extents[plane.index()].is_some()) {
        let drop = store.index().extent(from, plane).and_then(|extent| extent.error_drop);
        if let Some(drop) = drop {
            writer.set_error_drop(&to.id, plane, drop)?;
        }
    }
    for (matrix, drops) in from.matrices.iter().zip(&from.error_drops) {
        writer.set_matrix_error_drops(&to.id, matrix.kind, *drops)?;
    }
    Ok(())
}

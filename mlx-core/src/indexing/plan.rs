//! From the parts of an index and the shape of an array to what is sliced, gathered and arranged.

use super::{Bounds, Kind, Part, Stop};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::checked::along;

/// How the index uses a dimension of the array.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// It stays, sliced.
    Kept,
    /// An integer chose one slot.
    Dropped,
    /// An index array chooses its slots.
    Gathered,
}

/// An index that was checked against a shape. Dimensions of the result are in the order of the
/// index, those of the index arrays at `place`.
#[derive(Debug)]
pub(super) struct Plan {
    /// Bounds of each dimension, as MLX takes them.
    pub starts: Vec<i32>,
    pub stops: Vec<i32>,
    pub strides: Vec<i32>,
    /// Whether the bounds keep the whole array.
    pub whole: bool,
    /// The dimensions after slicing.
    pub sliced: Vec<i32>,
    uses: Vec<Use>,
    /// The index arrays, checked, with the dimension that each chooses from, in order.
    pub indices: Vec<(i32, Array)>,
    /// The common shape of the index arrays.
    pub common: Vec<i32>,
    /// How many kept dimensions stand before those of the index arrays.
    pub place: usize,
    /// The positions of new axes in the result.
    pub news: Vec<i32>,
    /// The shape of the result.
    pub result: Vec<i32>,
    /// The mask, unread, if it is the only index but for whole dimensions. It covers dimensions from `place` on, and
    /// the rest of the plan is that of all dimensions.
    pub mask: Option<Array>,
}

impl Plan {
    /// Dimensions that are no longer there once slots have been chosen.
    pub fn gone(&self) -> Vec<i32> {
        self.axes(|used| used != Use::Kept)
    }

    /// Dimensions of which an integer chose one slot.
    pub fn dropped(&self) -> Vec<i32> {
        self.axes(|used| used == Use::Dropped)
    }

    fn axes(&self, of: impl Fn(Use) -> bool) -> Vec<i32> {
        let uses = self.uses.iter().zip(0..);
        uses.filter(|(used, _)| of(**used))
            .map(|(_, axis)| axis)
            .collect()
    }
}

/// The plan for an index of `array`; `name` is the operation, for errors. If `lazily`, a mask that
/// is the only index stays a mask and is not evaluated.
pub(super) fn plan(
    name: &'static std::ffi::CStr,
    array: &Array,
    parts: Vec<Part<'_>>,
    lazily: bool,
) -> Result<Plan> {
    let shape = array.shape();
    let parts = spread(name, shape, parts)?;
    let has_arrays = parts
        .iter()
        .any(|part| matches!(part, Kind::Array(_) | Kind::List(_)));
    let mut build = Build {
        plan: Plan {
            starts: vec![0; shape.len()],
            stops: shape.to_vec(),
            strides: vec![1; shape.len()],
            whole: true,
            sliced: shape.to_vec(),
            uses: vec![Use::Kept; shape.len()],
            indices: Vec::new(),
            common: Vec::new(),
            place: 0,
            news: Vec::new(),
            result: Vec::new(),
            mask: None,
        },
        name,
        array,
        axis: 0,
        has_arrays,
        run: Run::Before,
        arranged: Vec::new(),
    };
    let lazily = lazily && is_mask_alone(&parts);
    for part in &parts {
        build.add(part, lazily)?;
    }
    build.finish()
}

/// Whether there is one array, a mask, and nothing else but whole dimensions.
fn is_mask_alone(parts: &[Kind<'_>]) -> bool {
    let mut masks = 0;
    let plain = parts.iter().all(|part| match part {
        Kind::Array(array) => {
            masks += 1;
            array.dtype() == DType::Bool
        }
        Kind::Slice(bounds, 1) => bounds.start.is_none() && matches!(bounds.stop, Stop::Never),
        _ => false,
    });
    plain && masks == 1
}

/// The parts with `..` in place of an ellipsis, and for the dimensions that are not named.
fn spread<'a>(name: &std::ffi::CStr, shape: &[i32], parts: Vec<Part<'a>>) -> Result<Vec<Kind<'a>>> {
    let (mut named, mut ellipses) = (0, 0);
    for Part(part) in &parts {
        match part {
            Kind::NewAxis => {}
            Kind::Ellipsis => ellipses += 1,
            Kind::Array(array) if array.dtype() == DType::Bool => named += array.ndim(),
            _ => named += 1,
        }
    }
    if ellipses > 1 {
        return Err(fault(name, "an index has at most one Ellipsis"));
    }
    let Some(left) = shape.len().checked_sub(named) else {
        let message = format!("too many indices: {named} for an array of shape {shape:?}");
        return Err(fault(name, &message));
    };
    let whole = || {
        let bounds = Bounds {
            start: None,
            stop: Stop::Never,
        };
        std::iter::repeat_with(move || Kind::Slice(bounds, 1)).take(left)
    };
    let mut spread = Vec::with_capacity(parts.len() + left);
    for Part(part) in parts {
        match part {
            Kind::Ellipsis => spread.extend(whole()),
            part => spread.push(part),
        }
    }
    if ellipses == 0 {
        spread.extend(whole());
    }
    Ok(spread)
}

pub(super) fn fault(name: &std::ffi::CStr, message: &str) -> Error {
    let name = name.to_string_lossy();
    Error::new(ErrorKind::Shape, format!("{name}: {message}"))
}

/// Where the walk over the parts is, relative to the index arrays. If other parts separate these
/// (`Apart`), their dimensions come first in the result.
#[derive(PartialEq)]
enum Run {
    Before,
    Inside,
    After,
    Apart,
}

/// A dimension of the result.
enum Dimension {
    Kept(i32),
    New,
    /// All those of the index arrays.
    Common,
}

struct Build<'a> {
    plan: Plan,
    name: &'static std::ffi::CStr,
    array: &'a Array,
    /// The next dimension of the array.
    axis: usize,
    has_arrays: bool,
    run: Run,
    arranged: Vec<Dimension>,
}

impl Build<'_> {
    fn add(&mut self, part: &Kind<'_>, lazily: bool) -> Result<()> {
        match part {
            Kind::At(at) => {
                self.slot(*at)?;
                if self.has_arrays {
                    self.chosen();
                }
            }
            Kind::Slice(bounds, by) => {
                self.slice(bounds, *by)?;
                self.between();
            }
            Kind::NewAxis => {
                self.arranged.push(Dimension::New);
                self.between();
            }
            Kind::Ellipsis => {}
            Kind::List(list) => self.list(list)?,
            Kind::Array(array) if array.dtype() == DType::Bool => self.mask(array, lazily)?,
            Kind::Array(array) => self.gather(array)?,
        }
        Ok(())
    }

    /// Notes an index array, or an integer beside one.
    fn chosen(&mut self) {
        match self.run {
            Run::Before => {
                self.arranged.push(Dimension::Common);
                self.run = Run::Inside;
            }
            Run::After => self.run = Run::Apart,
            Run::Inside | Run::Apart => {}
        }
    }

    /// Notes a part that is no index array.
    fn between(&mut self) {
        if self.run == Run::Inside {
            self.run = Run::After;
        }
    }

    fn size(&self) -> i64 {
        self.array.shape()[self.axis].into()
    }

    fn out_of_range(&self, at: i64) -> Error {
        let (axis, shape) = (self.axis, self.array.shape());
        let message = format!("index {at} is out of range for axis {axis} of shape {shape:?}");
        fault(self.name, &message)
    }

    fn slot(&mut self, at: i64) -> Result<()> {
        let size = self.size();
        let found = if at < 0 { at + size } else { at };
        if !(0..size).contains(&found) {
            return Err(self.out_of_range(at));
        }
        // A size fits an i32, and the slot is below it.
        self.bound(found as i32, found as i32 + 1, 1, 1);
        self.plan.uses[self.axis] = Use::Dropped;
        self.axis += 1;
        Ok(())
    }

    fn bound(&mut self, start: i32, stop: i32, by: i32, length: i32) {
        let (plan, axis) = (&mut self.plan, self.axis);
        plan.whole &= by == 1 && length == plan.sliced[axis];
        (plan.starts[axis], plan.stops[axis], plan.strides[axis]) = (start, stop, by);
        plan.sliced[axis] = length;
    }

    fn slice(&mut self, bounds: &Bounds, by: i64) -> Result<()> {
        if by == 0 {
            let message = format!("the step of axis {} must be non-zero", self.axis);
            return Err(fault(self.name, &message));
        }
        let (start, length) = places(bounds, by, self.size());
        match length {
            0 => self.bound(0, 0, 1, 0),
            1 => self.bound(start as i32, start as i32 + 1, 1, 1),
            _ => {
                let last = start + (length - 1) * by;
                let stop = if by > 0 { last + 1 } else { last - 1 };
                // MLX counts -1 from the end, so the position before the first is `-size - 1`.
                let stop = if stop < 0 { -self.size() - 1 } else { stop };
                self.bound(start as i32, stop as i32, by as i32, length as i32);
            }
        }
        self.arranged
            .push(Dimension::Kept(self.plan.sliced[self.axis]));
        self.axis += 1;
        Ok(())
    }

    /// An index list, whose numbers are known.
    fn list(&mut self, list: &[i64]) -> Result<()> {
        let size = self.size();
        let found: Result<Vec<i32>> = list
            .iter()
            .map(|&at| {
                let found = if at < 0 { at + size } else { at };
                match (0..size).contains(&found) {
                    true => Ok(found as i32),
                    false => Err(self.out_of_range(at)),
                }
            })
            .collect();
        let indices = Array::from_slice(&found?, list.len())?;
        self.choose(indices);
        Ok(())
    }

    fn gather(&mut self, indices: &Array) -> Result<()> {
        if !indices.dtype().is_integer() {
            let message = format!(
                "an index array must hold integers or Bool, given {}",
                indices.dtype()
            );
            return Err(Error::new(ErrorKind::DType, message).context(self.name.to_string_lossy()));
        }
        if self.size() == 0 && indices.size() > 0 {
            let shape = self.array.shape();
            let message = format!(
                "an index array of shape {:?} names slots of axis {} of shape {shape:?}, which has none",
                indices.shape(),
                self.axis
            );
            return Err(fault(self.name, &message));
        }
        let checked = if indices.size() == 0 {
            indices.clone()
        } else {
            along(self.name, self.array, self.axis as i32, indices)?
        };
        self.choose(checked);
        Ok(())
    }

    /// Takes indices that are in range, or are checked.
    fn choose(&mut self, indices: Array) {
        self.plan.indices.push((self.axis as i32, indices));
        self.plan.uses[self.axis] = Use::Gathered;
        self.axis += 1;
        self.chosen();
    }

    fn mask(&mut self, mask: &Array, lazily: bool) -> Result<()> {
        let ndim = mask.ndim();
        let covered = &self.array.shape()[self.axis..self.axis + ndim];
        if mask.shape() != covered || ndim == 0 {
            let message = format!(
                "a Bool index of shape {:?} does not cover dimensions from {} on of shape {:?}",
                mask.shape(),
                self.axis,
                self.array.shape()
            );
            return Err(fault(self.name, &message));
        }
        if lazily {
            self.plan.mask = Some(mask.clone());
            self.plan.place = self.axis;
            self.axis += ndim;
            return Ok(());
        }
        for indices in mask.nonzero()? {
            self.choose(indices);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Plan> {
        let shapes: Vec<&[i32]> = self
            .plan
            .indices
            .iter()
            .map(|(_, indices)| indices.shape())
            .collect();
        let Some(common) = common_shape(&shapes) else {
            let message = format!("index arrays of shapes {shapes:?} do not broadcast");
            return Err(fault(self.name, &message));
        };
        self.plan.common = common;
        if self.run == Run::Apart {
            self.arranged
                .retain(|dimension| !matches!(dimension, Dimension::Common));
            self.arranged.insert(0, Dimension::Common);
        }
        let plan = &mut self.plan;
        let mut kept = 0;
        for dimension in &self.arranged {
            match dimension {
                Dimension::Kept(size) => {
                    kept += 1;
                    plan.result.push(*size);
                }
                Dimension::New => {
                    plan.news.push(plan.result.len() as i32);
                    plan.result.push(1);
                }
                Dimension::Common => {
                    plan.place = kept;
                    plan.result.extend_from_slice(&plan.common);
                }
            }
        }
        Ok(self.plan)
    }
}

/// The first position of a slice of a dimension, and the number of positions.
fn places(bounds: &Bounds, by: i64, size: i64) -> (i64, i64) {
    let from_start = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    // The ends that a slice in this direction may have.
    let (least, most) = if by > 0 { (0, size) } else { (-1, size - 1) };
    let clamped = |at: i64| from_start(at).clamp(least, most);
    let start = match bounds.start {
        Some(start) => clamped(start),
        None if by > 0 => least,
        None => most,
    };
    let end = if by > 0 { most } else { least };
    let stop = match bounds.stop {
        Stop::Never => end,
        Stop::Before(stop) => clamped(stop),
        Stop::Including(last) => from_start(last)
            .saturating_add(by.signum())
            .clamp(least, most),
    };
    let distance = if by > 0 { stop - start } else { start - stop };
    let length = if distance <= 0 {
        0
    } else {
        (distance - 1) / by.saturating_abs() + 1
    };
    (start, length)
}

/// The shape to which all of `shapes` broadcast.
pub(super) fn common_shape(shapes: &[&[i32]]) -> Option<Vec<i32>> {
    let ndim = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut common = vec![1; ndim];
    for shape in shapes {
        for (size, at) in shape.iter().zip(ndim - shape.len()..) {
            match (common[at], *size) {
                (_, 1) => {}
                (1, size) => common[at] = size,
                (known, size) if known == size => {}
                _ => return None,
            }
        }
    }
    Some(common)
}

//! Indices (`i`, `set`, `at`) against plain Rust: NumPy's rules, written down a second time, place by place.

use mlx_core::indexing::{IndexItem, Part};
use mlx_core::{Array, Ellipsis, IntoIndex, NewAxis, Result, step};
use proptest::prelude::*;

use crate::config;
use crate::model::{Model, broadcast, ints, positions};
use crate::views::{chain, views};

#[derive(Clone, Debug)]
enum Item {
    At(i64),
    Slice(Option<i64>, Option<i64>, i64),
    New,
    Ellipsis,
    Ids(Vec<usize>, Vec<i64>),
    Mask(Vec<usize>, Vec<bool>),
}

/// A list of any length that is an index.
struct Index(Vec<Box<dyn IndexItem>>);

impl IntoIndex for Index {
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        self.0.iter().map(|item| item.part()).collect()
    }
}

impl Item {
    fn index(&self) -> Box<dyn IndexItem> {
        match self {
            Item::At(at) => Box::new(*at),
            Item::Slice(None, None, by) => Box::new(step(.., *by)),
            Item::Slice(Some(start), None, by) => Box::new(step(*start.., *by)),
            Item::Slice(None, Some(stop), 1) => Box::new(..*stop),
            Item::Slice(None, Some(stop), by) => Box::new(step(..*stop, *by)),
            Item::Slice(Some(start), Some(stop), 1) => Box::new(*start..*stop),
            Item::Slice(Some(start), Some(stop), by) => Box::new(step(*start..*stop, *by)),
            Item::New => Box::new(NewAxis),
            Item::Ellipsis => Box::new(Ellipsis),
            // A list where it can be one.
            Item::Ids(shape, ids) if shape.len() == 1 && ids.len() % 2 == 0 => {
                Box::new(ids.clone())
            }
            Item::Ids(shape, ids) => Box::new(Array::from_slice(ids, shape).unwrap()),
            Item::Mask(shape, bits) => Box::new(Array::from_slice(bits, shape).unwrap()),
        }
    }
}

fn index(items: &[Item]) -> Index {
    Index(items.iter().map(Item::index).collect())
}

/// The places of Python's `range(size)[start:stop:by]`.
fn sliced(size: i64, start: Option<i64>, stop: Option<i64>, by: i64) -> Vec<usize> {
    let (low, high) = if by > 0 { (0, size) } else { (-1, size - 1) };
    let end = |at: i64| (if at < 0 { at + size } else { at }).max(low).min(high);
    let mut at = start.map_or(if by > 0 { low } else { high }, end);
    let stop = stop.map_or(if by > 0 { high } else { low }, end);
    let mut places = Vec::new();
    while (by > 0 && at < stop) || (by < 0 && at > stop) {
        places.push(at as usize);
        at += by;
    }
    places
}

/// A dimension of the array, with the dimensions of the result that give the position in it.
enum Axis {
    Slot(usize),
    Slice(usize, Vec<usize>),
    Ids(Vec<usize>, Vec<usize>),
}

/// The shape of the result, and for each of its places, in order, that of the array.
fn resolve(shape: &[usize], items: &[Item]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let named: usize = items
        .iter()
        .map(|item| match item {
            Item::New | Item::Ellipsis => 0,
            Item::Mask(shape, _) => shape.len(),
            _ => 1,
        })
        .sum();
    let rest = vec![Item::Slice(None, None, 1); shape.len() - named];
    let mut all = Vec::new();
    let has_ellipsis = items.iter().any(|item| matches!(item, Item::Ellipsis));
    for item in items {
        match item {
            Item::Ellipsis => all.extend(rest.clone()),
            item => all.push(item.clone()),
        }
    }
    if !has_ellipsis {
        all.extend(rest);
    }
    let is_array = |item: &Item| matches!(item, Item::Ids(..) | Item::Mask(..));
    let advanced = all.iter().any(is_array);
    let chosen: Vec<usize> = (0..all.len())
        .filter(|&at| is_array(&all[at]) || advanced && matches!(all[at], Item::At(_)))
        .collect();
    let apart = chosen.windows(2).any(|pair| pair[1] != pair[0] + 1);
    let mut common = Vec::new();
    for item in &all {
        let own = match item {
            Item::Ids(shape, _) => shape.clone(),
            Item::Mask(_, bits) => vec![bits.iter().filter(|bit| **bit).count()],
            _ => continue,
        };
        common = broadcast(&common, &own).unwrap();
    }
    let (mut result, mut axes) = (Vec::new(), Vec::new());
    let mut block = None;
    if apart {
        block = Some(0);
        result.extend(&common);
    }
    for (at, item) in all.iter().enumerate() {
        if chosen.contains(&at) && block.is_none() {
            block = Some(result.len());
            result.extend(&common);
        }
        let size = shape.get(axes.len()).map_or(0, |&size| size as i64);
        let place = |at: i64| (if at < 0 { at + size } else { at }) as usize;
        match item {
            Item::At(at) => axes.push(Axis::Slot(place(*at))),
            Item::Slice(start, stop, by) => {
                let places = sliced(size, *start, *stop, *by);
                axes.push(Axis::Slice(result.len(), places.clone()));
                result.push(places.len());
            }
            Item::New => result.push(1),
            Item::Ids(shape, ids) => {
                axes.push(Axis::Ids(
                    shape.clone(),
                    ids.iter().map(|&at| place(at)).collect(),
                ));
            }
            Item::Mask(shape, bits) => {
                let all = positions(shape);
                let found: Vec<_> = all.iter().zip(bits).filter(|(_, bit)| **bit).collect();
                for axis in 0..shape.len() {
                    let along = found.iter().map(|(at, _)| at[axis]).collect();
                    axes.push(Axis::Ids(vec![found.len()], along));
                }
            }
            Item::Ellipsis => unreachable!(),
        }
    }
    let block = block.unwrap_or(0);
    let from = |at: &Vec<usize>| {
        let coordinate = |axis: &Axis| match axis {
            Axis::Slot(slot) => *slot,
            Axis::Slice(dimension, places) => places[at[*dimension]],
            Axis::Ids(shape, ids) => {
                let own = &at[block + common.len() - shape.len()..block + common.len()];
                let flat = own.iter().zip(shape).fold(0, |flat, (&i, &size)| {
                    flat * size + if size == 1 { 0 } else { i }
                });
                ids[flat]
            }
        };
        axes.iter().map(coordinate).collect()
    };
    let places = positions(&result).iter().map(from).collect();
    (result, places)
}

/// An index for a shape, from random numbers.
fn items(shape: &[usize], random: &[u32]) -> Vec<Item> {
    let mut random = random.iter().copied().cycle();
    let mut draw = move |n: usize| random.next().unwrap() as usize % n.max(1);
    let style = draw(4);
    let common: [&[usize]; 4] = [&[3], &[2, 3], &[], &[2, 1]];
    let common = common[draw(4)];
    let (mut found, mut axis) = (Vec::new(), 0);
    let mut has_ellipsis = false;
    let mut has_mask = false;
    while axis < shape.len() {
        let size = shape[axis];
        let position = |n: usize| n as i64 - size as i64;
        match draw(10) {
            0 | 1 if size > 0 => found.push(Item::At(position(draw(2 * size)))),
            2 => {
                found.push(Item::New);
                continue;
            }
            3 if !has_ellipsis => {
                has_ellipsis = true;
                found.push(Item::Ellipsis);
                axis += draw(3);
                continue;
            }
            4 => break,
            5 | 6 if style > 1 && size > 0 => {
                let start = draw(common.len() + 1);
                let own: Vec<usize> = common[start..]
                    .iter()
                    .map(|&n| if draw(4) == 0 { 1 } else { n })
                    .collect();
                let ids = (0..own.iter().product())
                    .map(|_| position(draw(2 * size)))
                    .collect();
                found.push(Item::Ids(own, ids));
            }
            5 | 6 if style == 1 && !has_mask => {
                has_mask = true;
                let ndim = 1 + draw((shape.len() - axis).min(2));
                let covered = &shape[axis..axis + ndim];
                let bits = (0..covered.iter().product())
                    .map(|_| draw(2) == 0)
                    .collect();
                found.push(Item::Mask(covered.to_vec(), bits));
                axis += ndim - 1;
            }
            _ => {
                let mut end = || (draw(3) > 0).then(|| draw(2 * size + 4) as i64 - size as i64 - 2);
                let (start, stop) = (end(), end());
                let by = [1, 1, 2, -1, -2, 3, 100, -100][draw(8)];
                found.push(Item::Slice(start, stop, by));
            }
        }
        axis += 1;
    }
    if draw(6) == 0 {
        found.push(Item::New);
    }
    // An ellipsis may have skipped more dimensions than it now stands for.
    while !has_ellipsis && named(&found) > shape.len() {
        found.pop();
    }
    found
}

fn named(items: &[Item]) -> usize {
    let taken = items.iter().map(|item| match item {
        Item::New | Item::Ellipsis => 0,
        Item::Mask(shape, _) => shape.len(),
        _ => 1,
    });
    taken.sum()
}

/// Whether an index fits a shape: behind an ellipsis the dimensions are other ones than those it was drawn for.
fn fits(shape: &[usize], items: &[Item]) -> bool {
    let Some(left) = shape.len().checked_sub(named(items)) else {
        return false;
    };
    let mut axis = 0;
    items.iter().all(|item| {
        let own = shape.get(axis).copied().unwrap_or(0);
        let (taken, ok) = match item {
            Item::New => (0, true),
            Item::Ellipsis => (left, true),
            Item::At(at) => (1, (-(own as i64)..own as i64).contains(at)),
            Item::Slice(..) => (1, true),
            Item::Ids(_, ids) => (
                1,
                ids.iter()
                    .all(|at| (-(own as i64)..own as i64).contains(at)),
            ),
            Item::Mask(mask, _) => (mask.len(), shape[axis..axis + mask.len()] == mask[..]),
        };
        axis += taken;
        ok
    })
}

fn flat(shape: &[usize], at: &[usize]) -> usize {
    at.iter()
        .zip(shape)
        .fold(0, |flat, (&i, &size)| flat * size + i)
}

fn cases() -> impl Strategy<Value = (Model, Vec<u32>)> {
    (
        prop::collection::vec(prop_oneof![1 => 0usize..1, 12 => 1usize..5], 0..=4),
        prop::collection::vec(any::<u32>(), 40),
    )
        .prop_map(|(shape, random)| (Model::counting(&shape), random))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..config() })]

    #[test]
    fn reading_picks_the_places((model, random) in cases(), views in views()) {
        let (model, array) = chain(model, &views).unwrap();
        let items = items(&model.shape, &random);
        prop_assume!(fits(&model.shape, &items));
        let (shape, places) = resolve(&model.shape, &items);
        let found = array.i(index(&items)).unwrap_or_else(|error| panic!("{items:?}: {error}"));
        let data = places.iter().map(|at| model.get(at)).collect();
        prop_assert_eq!(Model::read(&found).unwrap(), Model { shape, data }, "{:?} {:?}", model.shape, items);
    }

    #[test]
    fn writing_changes_the_places((model, random) in cases(), views in views(), cut in 0usize..4, kind in 0usize..4) {
        let (model, array) = chain(model, &views).unwrap();
        let items = items(&model.shape, &random);
        prop_assume!(fits(&model.shape, &items));
        let (shape, places) = resolve(&model.shape, &items);
        // Values that broadcast to the result: without some leading dimensions, and with a 1 among them.
        let mut own = shape[cut.min(shape.len())..].to_vec();
        if let Some(size) = own.get_mut(random[0] as usize % 4) {
            *size = 1;
        }
        let values = Model::from_fn(&own, |at| 2 + flat(&own, at) as i32 % 3);
        let of = |at: &[usize]| values.get_broadcast(at);
        let given = values.array();
        let at = array.at(index(&items));
        let found = match kind {
            0 => at.add(&given),
            1 => at.mul(&given),
            2 => at.max(given.multiply(7).unwrap()),
            _ => at.min(given.multiply(7).unwrap()),
        };
        let found = found.unwrap_or_else(|error| panic!("{items:?}: {error}"));
        let mut expected = model.clone();
        for (to, at) in places.iter().zip(positions(&shape)) {
            let place = &mut expected.data[flat(&model.shape, to)];
            *place = match kind {
                0 => *place + of(&at),
                1 => place.wrapping_mul(of(&at)),
                2 => (*place).max(7 * of(&at)),
                _ => (*place).min(7 * of(&at)),
            };
        }
        prop_assert_eq!(Model::read(&found).unwrap(), expected, "{:?} {:?}", model.shape, items);
        let set = array.set(index(&items), &given).unwrap();
        let set = Model::read(&set).unwrap();
        // Of equal places any value may win.
        for (to, place) in positions(&model.shape).iter().zip(&set.data) {
            let mut given = places.iter().zip(positions(&shape)).filter(|(place, _)| *place == to).peekable();
            let ok = match given.peek() {
                None => *place == model.get(to),
                Some(_) => given.any(|(_, at)| of(&at) == *place),
            };
            prop_assert!(ok, "{:?} {:?} {:?} at {to:?}: {place}", model.shape, items, values);
        }
        prop_assert_eq!(&set.shape, &model.shape);
        prop_assert_eq!(Model::read(&array).unwrap(), model);
    }

    #[test]
    fn nonzero_and_unique(model in crate::models(3, 0..=4), modulus in 1i32..6) {
        let model = Model::from_fn(&model.shape, |at| (flat(&model.shape, at) as i32 * 7) % modulus);
        let array = model.array();
        let found = array.nonzero().unwrap();
        prop_assert_eq!(found.len(), model.ndim());
        let places: Vec<_> = positions(&model.shape).into_iter().filter(|at| model.get(at) != 0).collect();
        for (axis, along) in found.iter().enumerate() {
            let expected: Vec<u32> = places.iter().map(|at| at[axis] as u32).collect();
            prop_assert_eq!(along.to_vec::<u32>().unwrap(), expected);
        }
        let unique = array.unique_all().unwrap();
        let mut values = model.data.clone();
        values.sort_unstable();
        values.dedup();
        prop_assert_eq!(unique.values.to_vec::<i32>().unwrap(), values.clone());
        let index = unique.index.to_vec::<u32>().unwrap();
        let inverse = unique.inverse.to_vec::<u32>().unwrap();
        let counts = unique.counts.to_vec::<i32>().unwrap();
        prop_assert_eq!(ints(&model.shape), unique.inverse.shape());
        for (at, value) in values.iter().enumerate() {
            let first = model.data.iter().position(|found| found == value).unwrap();
            prop_assert_eq!(index[at] as usize, first);
            let count = model.data.iter().filter(|found| *found == value).count();
            prop_assert_eq!(counts[at] as usize, count);
        }
        for (value, at) in model.data.iter().zip(inverse) {
            prop_assert_eq!(values[at as usize], *value);
        }
    }
}

//! Owned vectors, strings and maps of mlx-c.

use std::ffi::CStr;

use mlx_c_sys as sys;

use super::{Arg, call};
use crate::array::Array;
use crate::error::{ErrorKind, Result};
use crate::poison;

/// An owned `std::vector<array>`.
pub(crate) struct VectorArray(sys::mlx_vector_array);

impl VectorArray {
    /// A null handle, for out-parameters.
    pub(crate) fn null() -> Self {
        Self(sys::mlx_vector_array {
            ctx: std::ptr::null_mut(),
        })
    }

    /// Copies the handles (not the data) of `arrays`, refusing those of poisoned steps.
    pub(crate) fn new<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Self> {
        let mut handles = Vec::new();
        for array in arrays {
            poison::check(array)?;
            handles.push(array.raw());
        }
        // SAFETY: `handles` are live for the call; mlx-c copies them.
        let raw = unsafe { sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len()) };
        if raw.ctx.is_null() {
            return Err(super::take_error(ErrorKind::Mlx));
        }
        Ok(Self(raw))
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::mlx_vector_array {
        &mut self.0
    }

    /// The arrays inside, each with a handle of its own.
    pub(crate) fn to_vec(&self) -> Result<Vec<Array>> {
        // SAFETY: the handle comes from C++ or is null, which the function below accepts.
        unsafe { read(self.0) }
    }
}

/// The arrays of a vector that C++ owns and lends to a callback.
///
/// # Safety
/// `raw` must be null or a live vector.
pub(crate) unsafe fn read(raw: sys::mlx_vector_array) -> Result<Vec<Array>> {
    if raw.ctx.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: live by the caller's promise.
    let len = unsafe { sys::mlx_vector_array_size(raw) };
    (0..len)
        .map(|index| {
            let mut array = sys::mlx_array {
                ctx: std::ptr::null_mut(),
            };
            // SAFETY: the vector is live, the index in range, the out-handle fresh.
            call(ErrorKind::Mlx, || unsafe {
                sys::mlx_vector_array_get(&mut array, raw, index)
            })?;
            // SAFETY: the getter allocated this handle, which has no other owner.
            unsafe { Array::from_raw(array) }
        })
        .collect()
}

impl Drop for VectorArray {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once.
            unsafe { sys::mlx_vector_array_free(self.0) };
        }
    }
}

impl Arg for VectorArray {
    type C = sys::mlx_vector_array;
    fn c(&self) -> Self::C {
        self.0
    }
}

/// Runs a C call that fills a string handle.
pub(crate) fn string(f: impl FnOnce(*mut sys::mlx_string) -> std::ffi::c_int) -> Result<String> {
    let mut raw = sys::mlx_string {
        ctx: std::ptr::null_mut(),
    };
    let status = call(ErrorKind::Mlx, || f(&mut raw));
    if raw.ctx.is_null() {
        status?;
        return Ok(String::new());
    }
    // SAFETY: the handle is owned and non-null; its text lives until it is freed below.
    let text = unsafe {
        let data = sys::mlx_string_data(raw);
        let text = if data.is_null() {
            String::new()
        } else {
            CStr::from_ptr(data).to_string_lossy().into_owned()
        };
        sys::mlx_string_free(raw);
        text
    };
    status.map(|()| text)
}

/// The numbers of contractions, each behind how many it has, and the report of `mlxrs_einsum_path`.
pub(crate) fn einsum_path(
    subscripts: &CStr,
    operands: &VectorArray,
) -> Result<(Vec<Vec<usize>>, String)> {
    struct Numbers(sys::mlx_vector_int);
    impl Drop for Numbers {
        fn drop(&mut self) {
            if !self.0.ctx.is_null() {
                // SAFETY: owned, non-null, freed once.
                unsafe { sys::mlx_vector_int_free(self.0) };
            }
        }
    }
    let mut numbers = Numbers(sys::mlx_vector_int {
        ctx: std::ptr::null_mut(),
    });
    let report = string(|report| {
        // SAFETY: fresh out-handles, a live C string and a live vector.
        unsafe { sys::mlxrs_einsum_path(&mut numbers.0, report, subscripts.as_ptr(), operands.c()) }
    })?;
    // SAFETY: the call succeeded, so that the vector is live.
    let len = unsafe { sys::mlx_vector_int_size(numbers.0) };
    let mut flat = (0..len).map(|index| {
        let mut number = 0;
        // SAFETY: live vector, index in range.
        call(ErrorKind::Mlx, || unsafe {
            sys::mlx_vector_int_get(&mut number, numbers.0, index)
        })?;
        Ok(number as usize)
    });
    let mut path = Vec::new();
    while let Some(count) = flat.next() {
        path.push(flat.by_ref().take(count?).collect::<Result<_>>()?);
    }
    Ok((path, report))
}

/// An owned `std::vector<std::string>`.
pub(crate) struct Strings(sys::mlx_vector_string);

impl Strings {
    /// A null handle, for out-parameters.
    pub(crate) fn null() -> Self {
        Self(sys::mlx_vector_string {
            ctx: std::ptr::null_mut(),
        })
    }

    /// Copies `texts`.
    pub(crate) fn new(texts: &[&str]) -> Result<Self> {
        let texts = texts
            .iter()
            .map(|text| super::cstring(text))
            .collect::<Result<Vec<_>>>()?;
        let mut pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        // SAFETY: live C strings, which are copied.
        let raw = unsafe { sys::mlx_vector_string_new_data(pointers.as_mut_ptr(), pointers.len()) };
        if raw.ctx.is_null() {
            Err(super::take_error(ErrorKind::Mlx))
        } else {
            Ok(Self(raw))
        }
    }

    pub(crate) fn raw(&self) -> sys::mlx_vector_string {
        self.0
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::mlx_vector_string {
        &mut self.0
    }

    /// The texts inside.
    pub(crate) fn to_vec(&self) -> Result<Vec<std::ffi::CString>> {
        if self.0.ctx.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: live and non-null.
        let len = unsafe { sys::mlx_vector_string_size(self.0) };
        (0..len)
            .map(|index| {
                let mut text = std::ptr::null_mut();
                // SAFETY: live vector, index in range.
                call(ErrorKind::Mlx, || unsafe {
                    sys::mlx_vector_string_get(&mut text, self.0, index)
                })?;
                // SAFETY: the text belongs to the vector, which outlives this copy.
                Ok(unsafe { CStr::from_ptr(text) }.to_owned())
            })
            .collect()
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once.
            unsafe { sys::mlx_vector_string_free(self.0) };
        }
    }
}

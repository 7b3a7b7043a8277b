//! Properties of a device.
//!
//! ```
//! use mlx_core::Device;
//!
//! # fn main() -> mlx_core::Result<()> {
//! println!("{} properties", Device::CPU.info()?.len());
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;

use mlx_c_sys as sys;

use crate::error::{ErrorKind, Result};
use crate::ffi::{self, vector::Strings};
use crate::stream::Device;

/// One property of a device.
///
/// ```
/// use mlx_core::Device;
///
/// # fn main() -> mlx_core::Result<()> {
/// for (name, property) in Device::CPU.info()? {
///     println!("{name}: {property}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// A text, such as a name.
    Text(String),
    /// A number; in bytes if the key says so.
    Number(usize),
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Property::Text(text) => f.write_str(text),
            Property::Number(number) => write!(f, "{number}"),
        }
    }
}

impl Device {
    /// The properties that the back end reports. `device_name` and `architecture` are common to
    /// all; Metal and CUDA add their memory sizes.
    ///
    /// # Errors
    /// There is no such device.
    #[doc(alias = "device_info")]
    pub fn info(self) -> Result<BTreeMap<String, Property>> {
        let device = self.handle()?;
        let mut info = Info(sys::mlx_device_info {
            ctx: std::ptr::null_mut(),
        });
        // SAFETY: a live device, a fresh out-handle.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_info_get(&mut info.0, device.raw())
        })?;
        info.keys()?
            .into_iter()
            .map(|key| Ok((key.to_string_lossy().into_owned(), info.get(&key)?)))
            .collect()
    }
}

struct Info(sys::mlx_device_info);

impl Info {
    fn keys(&self) -> Result<Vec<CString>> {
        let mut keys = Strings::null();
        // SAFETY: live info, a fresh out-handle.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_info_get_keys(keys.as_mut_ptr(), self.0)
        })?;
        keys.to_vec()
    }

    fn get(&self, key: &CStr) -> Result<Property> {
        let mut is_text = false;
        // SAFETY: live info and key; the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_info_is_string(&mut is_text, self.0, key.as_ptr())
        })?;
        if is_text {
            let mut text = std::ptr::null();
            // SAFETY: as above.
            ffi::call(ErrorKind::Mlx, || unsafe {
                sys::mlx_device_info_get_string(&mut text, self.0, key.as_ptr())
            })?;
            // SAFETY: the text belongs to the info, which outlives this copy.
            return Ok(Property::Text(
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned(),
            ));
        }
        let mut number = 0;
        // SAFETY: as above.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_info_get_size(&mut number, self.0, key.as_ptr())
        })?;
        Ok(Property::Number(number))
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once.
            unsafe { sys::mlx_device_info_free(self.0) };
        }
    }
}

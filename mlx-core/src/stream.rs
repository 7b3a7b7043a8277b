//! Devices and streams.
//!
//! Operations run on the current stream of the calling thread: the default stream of the default
//! device, or the one that [`Stream::scope`] set. No operation takes a device or a stream as an
//! argument.
//!
//! ```
//! use mlx_core::{Device, DType, Stream, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let stream = Stream::new(Device::CPU)?;
//! let y = stream.scope(|| ones([2], DType::F32)?.add(1.0))?;
//! assert_eq!(y.to_vec::<f32>()?, [2.0, 2.0]);
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::fmt;

use mlx_c_sys as sys;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::{memory, poison, settings};

/// The kind of a device.
///
/// ```
/// use mlx_core::{Device, DeviceKind};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(Device::CPU.kind, DeviceKind::Cpu);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "DeviceType")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// A CUDA or Metal device.
    Gpu,
}

/// A device: kind and index.
///
/// ```
/// use mlx_core::{Device, DType, Stream, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let device = if Device::GPU.is_available()? { Device::GPU } else { Device::CPU };
/// let stream = Stream::new(device)?;
/// let y = stream.scope(|| ones(&[2], DType::F32)?.exp())?;
/// assert_eq!(y.shape(), [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its index among those of its kind.
    pub index: i32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => write!(f, "cpu:{}", self.index),
            DeviceKind::Gpu => write!(f, "gpu:{}", self.index),
        }
    }
}

/// An owned `mlx_device` handle.
pub(crate) struct DeviceHandle(sys::mlx_device);

impl DeviceHandle {
    pub(crate) fn raw(&self) -> sys::mlx_device {
        self.0
    }

    fn default_device() -> Result<Self> {
        let mut raw = sys::mlx_device {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: fills a fresh handle.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_get_default_device(&mut raw)
        })?;
        Ok(Self(raw))
    }

    fn device(&self) -> Result<Device> {
        let (mut kind, mut index) = (0, 0);
        // SAFETY: the handle is live, the out-parameters are local variables.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_get_type(&mut kind, self.0)
        })?;
        // SAFETY: as above.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_get_index(&mut index, self.0)
        })?;
        let kind = if kind == sys::MLX_CPU {
            DeviceKind::Cpu
        } else {
            DeviceKind::Gpu
        };
        Ok(Device { kind, index })
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once.
            unsafe { sys::mlx_device_free(self.0) };
        }
    }
}

impl Device {
    /// The first processor device.
    pub const CPU: Device = Device {
        kind: DeviceKind::Cpu,
        index: 0,
    };
    /// The first GPU.
    pub const GPU: Device = Device {
        kind: DeviceKind::Gpu,
        index: 0,
    };

    /// [`Device::CPU`], by the name of mlx-rs.
    pub const fn cpu() -> Self {
        Self::CPU
    }

    /// [`Device::GPU`], by the name of mlx-rs.
    pub const fn gpu() -> Self {
        Self::GPU
    }

    pub(crate) fn handle(self) -> Result<DeviceHandle> {
        let kind = match self.kind {
            DeviceKind::Cpu => sys::MLX_CPU,
            DeviceKind::Gpu => sys::MLX_GPU,
        };
        // SAFETY: plain values in, a fresh handle out.
        let raw = unsafe { sys::mlx_device_new_type(kind, self.index) };
        if raw.ctx.is_null() {
            Err(ffi::take_error(ErrorKind::Mlx))
        } else {
            Ok(DeviceHandle(raw))
        }
    }

    /// The device that operations run on unless a stream is set.
    ///
    /// # Errors
    /// MLX cannot report it.
    pub fn default_device() -> Result<Device> {
        DeviceHandle::default_device()?.device()
    }

    /// Makes this the default device of the process. Call it once, before another thread uses MLX.
    ///
    /// # Errors
    /// There is no such device.
    pub fn set_default(self) -> Result<()> {
        self.require()?;
        let handle = self.handle()?;
        // SAFETY: the handle is live.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_set_default_device(handle.raw())
        })?;
        CURRENT.with_borrow_mut(|current| current.clear());
        Ok(())
    }

    fn require(self) -> Result<()> {
        if self.is_available()? {
            return Ok(());
        }
        let message = format!("device {self} is not available");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether this build and machine have the device.
    ///
    /// # Errors
    /// MLX cannot report it.
    pub fn is_available(self) -> Result<bool> {
        let handle = self.handle()?;
        let mut available = false;
        // SAFETY: the handle is live, the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_device_is_available(&mut available, handle.raw())
        })?;
        Ok(available)
    }
}

/// The number of devices of a kind. Python calls it `device_count`.
///
/// ```
/// use mlx_core::{DeviceKind, stream::device_count};
///
/// assert_eq!(device_count(DeviceKind::Cpu)?, 1);
/// # Ok::<(), mlx_core::Error>(())
/// ```
///
/// # Errors
/// MLX cannot report it.
pub fn device_count(kind: DeviceKind) -> Result<usize> {
    let kind = match kind {
        DeviceKind::Cpu => sys::MLX_CPU,
        DeviceKind::Gpu => sys::MLX_GPU,
    };
    let mut count = 0;
    // SAFETY: a plain value in, the out-parameter is a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_device_count(&mut count, kind)
    })?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// A stream for each thread: the same value stands for another [`Stream`] on each thread that calls
/// [`stream`](Self::stream). Python calls it `new_thread_local_stream`.
///
/// There is no stream that several threads share (`new_thread_unsafe_stream`): its user must
/// prevent races, which safe Rust cannot require of a caller.
///
/// ```
/// use mlx_core::{Array, Device, stream::ThreadLocalStream};
///
/// # fn main() -> mlx_core::Result<()> {
/// let streams = ThreadLocalStream::new(Device::CPU)?;
/// std::thread::scope(|scope| {
///     let thread = scope.spawn(|| -> mlx_core::Result<f32> {
///         streams.stream()?.scope(|| Array::scalar(2.0f32)?.exp()?.log()?.item())
///     });
///     assert_eq!(thread.join().unwrap().unwrap().round(), 2.0);
/// });
/// let here = streams.stream()?.scope(|| Array::scalar(0.0f32)?.exp()?.item::<f32>())?;
/// assert_eq!(here, 1.0);
/// # Ok(())
/// # }
/// ```
pub struct ThreadLocalStream(sys::mlx_stream_thread_local);

// SAFETY: the handle owns a device and a number, which nothing changes after `new`; MLX keeps the streams of each thread apart.
unsafe impl Send for ThreadLocalStream {}
// SAFETY: as above.
unsafe impl Sync for ThreadLocalStream {}

impl ThreadLocalStream {
    #[doc(alias = "new_thread_local_stream")]
    /// New streams on `device`. A thread's stream is made when the thread first asks for it.
    ///
    /// # Errors
    /// There is no such device.
    pub fn new(device: Device) -> Result<Self> {
        device.require()?;
        let handle = device.handle()?;
        // SAFETY: the handle is live; a fresh handle comes back.
        let raw = unsafe { sys::mlx_stream_thread_local_new(handle.raw()) };
        if raw.ctx.is_null() {
            return Err(ffi::take_error(ErrorKind::Mlx));
        }
        Ok(Self(raw))
    }

    /// The stream of the calling thread.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn stream(&self) -> Result<Stream> {
        let mut raw = sys::mlx_stream {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the handle is live, the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_stream_from_thread_local(&mut raw, self.0)
        })?;
        Stream::wrap(raw)
    }
}

impl Drop for ThreadLocalStream {
    fn drop(&mut self) {
        // SAFETY: owned and non-null, freed once. The streams belong to MLX.
        unsafe { sys::mlx_stream_thread_local_free(self.0) };
    }
}

/// The device that operations run on unless a stream is set, as [`Device::default_device`].
///
/// # Errors
/// MLX cannot report it.
pub fn default_device() -> Result<Device> {
    Device::default_device()
}

/// Makes `device` the default device of the process, as [`Device::set_default`].
///
/// ```
/// use mlx_core::{Device, default_device, set_default_device};
///
/// # fn main() -> mlx_core::Result<()> {
/// set_default_device(Device::CPU)?;
/// assert_eq!(default_device()?, Device::CPU);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no such device.
pub fn set_default_device(device: Device) -> Result<()> {
    device.set_default()
}

/// The stream of the calling thread on which operations run if `device` is the default device and no stream is set.
///
/// ```
/// use mlx_core::{DType, Device, default_stream, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = default_stream(Device::CPU)?.scope(|| ones([2], DType::F32)?.square())?;
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no such device.
pub fn default_stream(device: Device) -> Result<Stream> {
    device.require()?;
    Stream::default_of(device)
}

/// A new stream of the calling thread on `device`, as [`Stream::new`].
///
/// # Errors
/// Those of [`Stream::new`].
pub fn new_stream(device: Device) -> Result<Stream> {
    Stream::new(device)
}

/// Ends the streams of the calling thread, after their work, and gives it new default streams, without which MLX could do
/// nothing more on the thread.
///
/// Lazy arrays that were made before can no longer be computed: evaluating them is an error.
///
/// # Errors
/// The function is called within [`Stream::scope`], or queued work fails.
pub fn clear_streams() -> Result<()> {
    let scoped = CURRENT.with_borrow(|current| current.len() > 1);
    if scoped {
        let message = "clear_streams: a scope of a stream is still running on this thread";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    crate::synchronize()?;
    CURRENT.with_borrow_mut(Vec::clear);
    // SAFETY: takes nothing.
    ffi::call(ErrorKind::Mlx, || unsafe { sys::mlx_clear_streams() })?;
    for device in [Device::CPU, Device::GPU] {
        if device.is_available()? {
            let stream = Stream::new(device)?;
            // SAFETY: the stream is live; MLX copies its number.
            ffi::call(ErrorKind::Mlx, || unsafe {
                sys::mlx_set_default_stream(stream.0)
            })?;
        }
    }
    Ok(())
}

/// A queue of work on a device, usable on the thread that made it.
///
/// On CUDA use one CPU stream at a time beside GPU streams: the events with which MLX orders CPU and
/// GPU streams can end in a deadlock where there are two of each.
///
/// ```
/// use mlx_core::{Device, DType, Stream, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let other = Stream::new(Device::CPU)?;
/// // Operations that are built in the scope run on this stream, beside those of the default one.
/// let y = other.scope(|| ones(&[2], DType::F32)?.add(1.0))?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub struct Stream(sys::mlx_stream);

impl Stream {
    #[doc(alias = "new_stream")]
    /// A new stream on `device`, for the calling thread. On the CPU its first work starts a thread, which ends with the
    /// calling thread.
    ///
    /// # Errors
    /// There is no such device.
    pub fn new(device: Device) -> Result<Self> {
        device.require()?;
        let handle = device.handle()?;
        // SAFETY: the handle is live; a fresh stream handle comes back.
        Self::wrap(unsafe { sys::mlx_stream_new_device(handle.raw()) })
    }

    /// The default stream of this thread on `device`.
    pub(crate) fn default_of(device: Device) -> Result<Self> {
        Self::of_handle(&device.handle()?)
    }

    fn default_stream() -> Result<Self> {
        Self::of_handle(&DeviceHandle::default_device()?)
    }

    fn of_handle(device: &DeviceHandle) -> Result<Self> {
        let mut raw = sys::mlx_stream {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the handle is live, the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_get_default_stream(&mut raw, device.raw())
        })?;
        Self::wrap(raw)
    }

    /// Whether operations of this thread run on this stream now.
    pub(crate) fn is_current(&self) -> Result<bool> {
        let (mut own, mut other) = (0, 0);
        for (index, stream) in [(&mut own, self.0), (&mut other, current()?)] {
            // SAFETY: both streams are live, the out-parameters are local variables.
            ffi::call(ErrorKind::Mlx, || unsafe {
                sys::mlxrs_stream_index(index, stream)
            })?;
        }
        Ok(own == other)
    }

    fn wrap(raw: sys::mlx_stream) -> Result<Self> {
        if raw.ctx.is_null() {
            Err(ffi::take_error(ErrorKind::Mlx))
        } else {
            let stream = Self(raw);
            settings::check()?;
            // SAFETY: takes nothing, and may be called at any time.
            ffi::call(ErrorKind::Mlx, || unsafe { sys::mlxrs_finish_at_exit() })?;
            Ok(stream)
        }
    }

    /// Runs `f` with this stream as the current one of the thread.
    #[doc(alias = "StreamContext")]
    #[doc(alias = "set_default_stream")]
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Pop;
        impl Drop for Pop {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(|current| current.pop());
            }
        }
        poison::several_streams();
        CURRENT.with_borrow_mut(|current| {
            if current.is_empty() {
                // The bottom of the stack is the default stream, so that the scope's stream is never at the bottom.
                if let Ok(stream) = Stream::default_stream() {
                    current.push(stream);
                }
            }
            current.push(self.clone());
        });
        let _pop = Pop;
        f()
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        let mut raw = sys::mlx_stream {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: allocates a second handle to the same stream; fails only without memory.
        let status = unsafe { sys::mlx_stream_set(&mut raw, self.0) };
        if status != 0 || raw.ctx.is_null() {
            memory::exhausted(size_of::<Self>());
        }
        Self(raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: owned and non-null, freed once. The queue belongs to MLX.
        unsafe { sys::mlx_stream_free(self.0) };
    }
}

thread_local! {
    /// The default stream at the bottom, scoped ones above it. Empty until first use.
    static CURRENT: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// Whether the current stream is that of a GPU.
pub(crate) fn is_on_gpu() -> Result<bool> {
    let stream = current()?;
    let mut raw = sys::mlx_device {
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: the current stream is live, and fills a fresh handle.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_stream_get_device(&mut raw, stream)
    })?;
    Ok(DeviceHandle(raw).device()?.kind == DeviceKind::Gpu)
}

/// Whether the current stream is that of an NVIDIA GPU.
pub(crate) fn is_on_cuda() -> Result<bool> {
    let mut is_there = false;
    // SAFETY: fills a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_cuda_is_available(&mut is_there)
    })?;
    Ok(is_there && is_on_gpu()?)
}

/// The current stream's handle, live until the scope that set it ends.
#[doc(hidden)]
pub fn current() -> Result<sys::mlx_stream> {
    CURRENT.with_borrow_mut(|current| {
        if let Some(stream) = current.last() {
            return Ok(stream.0);
        }
        poison::prepare();
        let stream = Stream::default_stream()?;
        let raw = stream.0;
        current.push(stream);
        Ok(raw)
    })
}

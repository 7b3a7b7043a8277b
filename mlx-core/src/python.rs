//! Names: MLX's in Python, and those of this crate.
//!
//! Each public name of Python's MLX 0.32.4 has a row: a link to what does the same here, or the reason why there is
//! none. A test compares the rows with Python's names and with this crate's items. The layers, losses, initialisers and
//! optimisers are in the module of this name of `mlx-nn`.
//!
//! # `mlx.core`
//!
//! | Python | here |
//! |---|---|
//! | `mx.ArrayAt` | [`At`] |
//! | `mx.ArrayIterator` | [`Rows`] |
//! | `mx.ArrayLike` | [`Operand`] |
//! | `mx.Device` | [`Device`] |
//! | `mx.DeviceType` | [`DeviceKind`] |
//! | `mx.Dtype` | [`DType`] |
//! | `mx.DtypeCategory` | [`DTypeKind`] |
//! | `mx.FunctionExporter` | [`export::Exporter`] |
//! | `mx.PrintOptions` | [`PrintOptions`] |
//! | `mx.Stream` | [`Stream`] |
//! | `mx.StreamContext` | [`Stream::scope`] |
//! | `mx.ThreadLocalStream` | [`ThreadLocalStream`] |
//! | `mx.abs` | [`Array::abs`] |
//! | `mx.acos` | [`Array::arccos`] |
//! | `mx.acosh` | [`Array::arccosh`] |
//! | `mx.add` | [`Array::add`] |
//! | `mx.addmm` | [`Array::addmm`] |
//! | `mx.all` | [`Array::all`] |
//! | `mx.allclose` | [`Array::allclose`] |
//! | `mx.any` | [`Array::any`] |
//! | `mx.arange` | [`Array::arange`] |
//! | `mx.arccos` | [`Array::arccos`] |
//! | `mx.arccosh` | [`Array::arccosh`] |
//! | `mx.arcsin` | [`Array::arcsin`] |
//! | `mx.arcsinh` | [`Array::arcsinh`] |
//! | `mx.arctan` | [`Array::arctan`] |
//! | `mx.arctan2` | [`Array::arctan2`] |
//! | `mx.arctanh` | [`Array::arctanh`] |
//! | `mx.argmax` | [`Array::argmax`] |
//! | `mx.argmin` | [`Array::argmin`] |
//! | `mx.argpartition` | [`Array::argpartition`] |
//! | `mx.argsort` | [`Array::argsort`] |
//! | `mx.array` | [`Array::from_slice`] |
//! | `mx.array_equal` | [`Array::array_equal`] |
//! | `mx.as_strided` | [`Array::as_strided`] |
//! | `mx.asarray` | [`Array::from_slice`] |
//! | `mx.asin` | [`Array::arcsin`] |
//! | `mx.asinh` | [`Array::arcsinh`] |
//! | `mx.astype` | [`Array::astype`] |
//! | `mx.async_eval` | [`async_eval()`] |
//! | `mx.atan` | [`Array::arctan`] |
//! | `mx.atan2` | [`Array::arctan2`] |
//! | `mx.atanh` | [`Array::arctanh`] |
//! | `mx.atleast_1d` | [`Array::atleast_1d`] |
//! | `mx.atleast_2d` | [`Array::atleast_2d`] |
//! | `mx.atleast_3d` | [`Array::atleast_3d`] |
//! | `mx.bartlett` | [`bartlett()`] |
//! | `mx.bfloat16` | [`DType::BF16`] |
//! | `mx.bitwise_and` | [`Array::bitwise_and`] |
//! | `mx.bitwise_invert` | [`Array::bitwise_invert`] |
//! | `mx.bitwise_left_shift` | [`Array::left_shift`] |
//! | `mx.bitwise_or` | [`Array::bitwise_or`] |
//! | `mx.bitwise_right_shift` | [`Array::right_shift`] |
//! | `mx.bitwise_xor` | [`Array::bitwise_xor`] |
//! | `mx.blackman` | [`blackman()`] |
//! | `mx.block_masked_mm` | [`Array::block_masked_mm`] |
//! | `mx.bool_` | [`DType::Bool`] |
//! | `mx.broadcast_arrays` | [`broadcast_arrays()`] |
//! | `mx.broadcast_shapes` | [`broadcast_shapes()`] |
//! | `mx.broadcast_to` | [`Array::broadcast_to`] |
//! | `mx.can_cast` | [`can_cast()`] |
//! | `mx.ceil` | [`Array::ceil`] |
//! | `mx.checkpoint` | [`transforms::checkpoint()`] |
//! | `mx.clear_cache` | [`memory::clear_cache()`] |
//! | `mx.clear_streams` | [`stream::clear_streams()`] |
//! | `mx.clip` | [`Array::clip`] |
//! | `mx.compile` | [`transforms::compile()`] |
//! | `mx.complex64` | [`DType::C64`] |
//! | `mx.complexfloating` | [`DTypeKind::ComplexFloating`] |
//! | `mx.concat` | [`concat()`] |
//! | `mx.concatenate` | [`concat()`] |
//! | `mx.conj` | [`Array::conjugate`] |
//! | `mx.conjugate` | [`Array::conjugate`] |
//! | `mx.contiguous` | [`Array::contiguous`] |
//! | `mx.conv1d` | [`Array::conv1d`] |
//! | `mx.conv2d` | [`Array::conv2d`] |
//! | `mx.conv3d` | [`Array::conv3d`] |
//! | `mx.conv_general` | [`Array::conv_general`] |
//! | `mx.conv_transpose1d` | [`Array::conv_transpose1d`] |
//! | `mx.conv_transpose2d` | [`Array::conv_transpose2d`] |
//! | `mx.conv_transpose3d` | [`Array::conv_transpose3d`] |
//! | `mx.convolve` | [`convolve()`] |
//! | `mx.cos` | [`Array::cos`] |
//! | `mx.cosh` | [`Array::cosh`] |
//! | `mx.count_nonzero` | [`Array::count_nonzero`] |
//! | `mx.cpu` | [`Device::CPU`] |
//! | `mx.cummax` | [`Array::cummax`] |
//! | `mx.cummin` | [`Array::cummin`] |
//! | `mx.cumprod` | [`Array::cumprod`] |
//! | `mx.cumsum` | [`Array::cumsum`] |
//! | `mx.cumulative_prod` | [`Array::cumprod`] |
//! | `mx.cumulative_sum` | [`Array::cumsum`] |
//! | `mx.custom_function` | [`transforms::custom_function()`] |
//! | `mx.default_device` | [`default_device()`] |
//! | `mx.default_stream` | [`default_stream()`] |
//! | `mx.degrees` | [`Array::degrees`] |
//! | `mx.depends` | [`depends()`] |
//! | `mx.dequantize` | [`dequantize()`] |
//! | `mx.device_count` | [`device_count()`] |
//! | `mx.device_info` | [`Device::info`] |
//! | `mx.diag` | [`diag()`] |
//! | `mx.diagonal` | [`Array::diagonal`] |
//! | `mx.diff` | [`Array::diff`] |
//! | `mx.disable_compile` | [`transforms::compile::set_enabled()`] |
//! | `mx.divide` | [`Array::divide`] |
//! | `mx.divmod` | [`Array::divmod`] |
//! | `mx.e` | [`std::f64::consts::E`] |
//! | `mx.einsum` | [`einsum()`] |
//! | `mx.einsum_path` | [`einsum_path()`] |
//! | `mx.empty` | [`empty()`] |
//! | `mx.empty_like` | [`empty_like()`] |
//! | `mx.enable_compile` | [`transforms::compile::set_enabled()`] |
//! | `mx.equal` | [`Array::equal`] |
//! | `mx.erf` | [`Array::erf`] |
//! | `mx.erfinv` | [`Array::erfinv`] |
//! | `mx.euler_gamma` | [`EULER_GAMMA`] |
//! | `mx.eval` | [`eval()`] |
//! | `mx.exp` | [`Array::exp`] |
//! | `mx.expand_dims` | [`Array::expand_dims`] |
//! | `mx.expm1` | [`Array::expm1`] |
//! | `mx.export_function` | [`export::export_function()`] |
//! | `mx.export_to_dot` | [`export::export_to_dot()`] |
//! | `mx.exporter` | [`export::Exporter`] |
//! | `mx.eye` | [`Array::eye`] |
//! | `mx.finfo` | [`finfo()`] |
//! | `mx.flatten` | [`Array::flatten`] |
//! | `mx.flip` | [`Array::flip`] |
//! | `mx.float16` | [`DType::F16`] |
//! | `mx.float32` | [`DType::F32`] |
//! | `mx.float64` | [`DType::F64`] |
//! | `mx.floating` | [`DTypeKind::Floating`] |
//! | `mx.floor` | [`Array::floor`] |
//! | `mx.floor_divide` | [`Array::floor_divide`] |
//! | `mx.from_dlpack` | arrays of other libraries are copied: [`Array::from_slice`] |
//! | `mx.from_fp8` | [`Array::from_fp8`] |
//! | `mx.full` | [`Array::full`] |
//! | `mx.full_like` | [`Array::full_like`] |
//! | `mx.gather_mm` | [`Array::gather_mm`] |
//! | `mx.gather_qmm` | [`gather_qmm()`] |
//! | `mx.gather_qqmm` | [`gather_qqmm()`] |
//! | `mx.generic` | [`DTypeKind::Generic`] |
//! | `mx.get_active_memory` | [`memory::active()`] |
//! | `mx.get_array_buffer_size` | [`Array::nbytes`] |
//! | `mx.get_cache_memory` | [`memory::cached()`] |
//! | `mx.get_memory_limit` | [`memory::memory_limit()`] |
//! | `mx.get_peak_memory` | [`memory::peak()`] |
//! | `mx.get_printoptions` | [`get_printoptions()`] |
//! | `mx.gpu` | [`Device::GPU`] |
//! | `mx.grad` | [`transforms::grad()`] |
//! | `mx.greater` | [`Array::greater`] |
//! | `mx.greater_equal` | [`Array::greater_equal`] |
//! | `mx.hadamard_transform` | [`Array::hadamard_transform`] |
//! | `mx.hamming` | [`hamming()`] |
//! | `mx.hanning` | [`hanning()`] |
//! | `mx.identity` | [`identity()`] |
//! | `mx.iinfo` | [`iinfo()`] |
//! | `mx.imag` | [`Array::imag`] |
//! | `mx.import_function` | [`export::import_function()`] |
//! | `mx.inexact` | [`DTypeKind::Inexact`] |
//! | `mx.inf` | [`f32::INFINITY`] |
//! | `mx.inner` | [`Array::inner`] |
//! | `mx.int16` | [`DType::I16`] |
//! | `mx.int32` | [`DType::I32`] |
//! | `mx.int64` | [`DType::I64`] |
//! | `mx.int8` | [`DType::I8`] |
//! | `mx.integer` | [`DTypeKind::Integer`] |
//! | `mx.is_available` | [`Device::is_available`] |
//! | `mx.isclose` | [`Array::isclose`] |
//! | `mx.isdtype` | [`isdtype()`] |
//! | `mx.isfinite` | [`Array::isfinite`] |
//! | `mx.isinf` | [`Array::isinf`] |
//! | `mx.isnan` | [`Array::isnan`] |
//! | `mx.isneginf` | [`Array::isneginf`] |
//! | `mx.isposinf` | [`Array::isposinf`] |
//! | `mx.issubdtype` | [`issubdtype()`] |
//! | `mx.jvp` | [`transforms::jvp()`] |
//! | `mx.kron` | [`Array::kron`] |
//! | `mx.left_shift` | [`Array::left_shift`] |
//! | `mx.less` | [`Array::less`] |
//! | `mx.less_equal` | [`Array::less_equal`] |
//! | `mx.linspace` | [`Array::linspace`] |
//! | `mx.load` | [`load()`] |
//! | `mx.log` | [`Array::log`] |
//! | `mx.log10` | [`Array::log10`] |
//! | `mx.log1p` | [`Array::log1p`] |
//! | `mx.log2` | [`Array::log2`] |
//! | `mx.logaddexp` | [`Array::logaddexp`] |
//! | `mx.logcumsumexp` | [`Array::logcumsumexp`] |
//! | `mx.logical_and` | [`Array::logical_and`] |
//! | `mx.logical_not` | [`Array::logical_not`] |
//! | `mx.logical_or` | [`Array::logical_or`] |
//! | `mx.logical_xor` | [`Array::logical_xor`] |
//! | `mx.logsumexp` | [`Array::logsumexp`] |
//! | `mx.matmul` | [`Array::matmul`] |
//! | `mx.matrix_norm` | [`linalg::norm_matrix()`] |
//! | `mx.matrix_transpose` | [`Array::matrix_transpose`] |
//! | `mx.max` | [`Array::max`] |
//! | `mx.maximum` | [`Array::maximum`] |
//! | `mx.mean` | [`Array::mean`] |
//! | `mx.median` | [`Array::median`] |
//! | `mx.meshgrid` | [`meshgrid()`] |
//! | `mx.min` | [`Array::min`] |
//! | `mx.minimum` | [`Array::minimum`] |
//! | `mx.minmax` | [`Array::minmax`] |
//! | `mx.moveaxis` | [`Array::moveaxis`] |
//! | `mx.multiply` | [`Array::multiply`] |
//! | `mx.nan` | [`f32::NAN`] |
//! | `mx.nan_to_num` | [`Array::nan_to_num`] |
//! | `mx.negative` | [`Array::negative`] |
//! | `mx.new_stream` | [`new_stream()`] |
//! | `mx.new_thread_local_stream` | [`ThreadLocalStream::new`] |
//! | `mx.new_thread_unsafe_stream` | its user must prevent races, which safe Rust cannot ask for; [`ThreadLocalStream`] is safe |
//! | `mx.newaxis` | [`NewAxis`] |
//! | `mx.not_equal` | [`Array::not_equal`] |
//! | `mx.number` | [`DTypeKind::Number`] |
//! | `mx.ones` | [`Array::ones`] |
//! | `mx.ones_like` | [`Array::ones_like`] |
//! | `mx.outer` | [`Array::outer`] |
//! | `mx.pad` | [`Array::pad`] |
//! | `mx.partition` | [`Array::partition`] |
//! | `mx.permute_dims` | [`Array::transpose`] |
//! | `mx.pi` | [`std::f64::consts::PI`] |
//! | `mx.positive` | [`Array::positive`] |
//! | `mx.pow` | [`Array::power`] |
//! | `mx.power` | [`Array::power`] |
//! | `mx.printoptions` | [`PrintOptions::scope`] |
//! | `mx.prod` | [`Array::prod`] |
//! | `mx.put_along_axis` | [`Array::put_along_axis`] |
//! | `mx.qqmm` | [`qqmm()`] |
//! | `mx.quantize` | [`quantize()`] |
//! | `mx.quantized_matmul` | [`quantized_matmul()`] |
//! | `mx.radians` | [`Array::radians`] |
//! | `mx.real` | [`Array::real`] |
//! | `mx.reciprocal` | [`Array::reciprocal`] |
//! | `mx.remainder` | [`Array::remainder`] |
//! | `mx.repeat` | [`Array::repeat`] |
//! | `mx.reset_peak_memory` | [`memory::reset_peak()`] |
//! | `mx.reshape` | [`Array::reshape`] |
//! | `mx.result_type` | [`result_type()`] |
//! | `mx.right_shift` | [`Array::right_shift`] |
//! | `mx.roll` | [`Array::roll`] |
//! | `mx.round` | [`Array::round`] |
//! | `mx.rsqrt` | [`Array::rsqrt`] |
//! | `mx.save` | [`save()`] |
//! | `mx.save_gguf` | [`save_gguf()`] |
//! | `mx.save_safetensors` | [`save_safetensors()`] |
//! | `mx.savez` | [`savez()`] |
//! | `mx.savez_compressed` | [`savez_compressed()`] |
//! | `mx.searchsorted` | [`Array::searchsorted`] |
//! | `mx.segmented_mm` | [`Array::segmented_mm`] |
//! | `mx.set_cache_limit` | [`memory::set_cache_limit()`] |
//! | `mx.set_default_device` | [`set_default_device()`] |
//! | `mx.set_default_stream` | [`Stream::scope`] |
//! | `mx.set_memory_limit` | [`memory::set_memory_limit()`] |
//! | `mx.set_printoptions` | [`set_printoptions()`] |
//! | `mx.set_wired_limit` | [`memory::set_wired_limit()`] |
//! | `mx.sigmoid` | [`Array::sigmoid`] |
//! | `mx.sign` | [`Array::sign`] |
//! | `mx.signedinteger` | [`DTypeKind::SignedInteger`] |
//! | `mx.sin` | [`Array::sin`] |
//! | `mx.sinh` | [`Array::sinh`] |
//! | `mx.slice` | [`Array::slice_dynamic`] |
//! | `mx.slice_update` | [`Array::slice_update_dynamic`] |
//! | `mx.softmax` | [`Array::softmax`] |
//! | `mx.sort` | [`Array::sort`] |
//! | `mx.split` | [`Array::split`] |
//! | `mx.sqrt` | [`Array::sqrt`] |
//! | `mx.square` | [`Array::square`] |
//! | `mx.squeeze` | [`Array::squeeze`] |
//! | `mx.stack` | [`Array::stack`] |
//! | `mx.std` | [`Array::std`] |
//! | `mx.stop_gradient` | [`Array::stop_gradient`] |
//! | `mx.stream` | [`Stream::scope`] |
//! | `mx.subtract` | [`Array::subtract`] |
//! | `mx.sum` | [`Array::sum`] |
//! | `mx.swapaxes` | [`Array::swapaxes`] |
//! | `mx.synchronize` | [`synchronize()`] |
//! | `mx.take` | [`Array::take`] |
//! | `mx.take_along_axis` | [`Array::take_along_axis`] |
//! | `mx.tan` | [`Array::tan`] |
//! | `mx.tanh` | [`Array::tanh`] |
//! | `mx.tensordot` | [`Array::tensordot`] |
//! | `mx.tile` | [`Array::tile`] |
//! | `mx.to_fp8` | [`Array::to_fp8`] |
//! | `mx.topk` | [`Array::topk`] |
//! | `mx.trace` | [`Array::trace`] |
//! | `mx.transpose` | [`Array::transpose`] |
//! | `mx.tri` | [`tri()`] |
//! | `mx.tril` | [`tril()`] |
//! | `mx.triu` | [`triu()`] |
//! | `mx.trunc` | [`Array::trunc`] |
//! | `mx.uint16` | [`DType::U16`] |
//! | `mx.uint32` | [`DType::U32`] |
//! | `mx.uint64` | [`DType::U64`] |
//! | `mx.uint8` | [`DType::U8`] |
//! | `mx.unflatten` | [`Array::unflatten`] |
//! | `mx.unique` | [`Array::unique`] |
//! | `mx.unsignedinteger` | [`DTypeKind::UnsignedInteger`] |
//! | `mx.unstack` | [`Array::unstack`] |
//! | `mx.value_and_grad` | [`transforms::value_and_grad()`] |
//! | `mx.var` | [`Array::var`] |
//! | `mx.vecdot` | [`Array::vecdot`] |
//! | `mx.view` | [`Array::view`] |
//! | `mx.vjp` | [`transforms::vjp()`] |
//! | `mx.vmap` | [`transforms::vmap()`] |
//! | `mx.where` | [`where_()`] |
//! | `mx.zeros` | [`Array::zeros`] |
//! | `mx.zeros_like` | [`Array::zeros_like`] |
//!
//! # `mlx.core.array`
//!
//! | Python | here |
//! |---|---|
//! | `array.T` | [`Array::t`] |
//! | `array.abs` | [`Array::abs`] |
//! | `array.all` | [`Array::all`] |
//! | `array.any` | [`Array::any`] |
//! | `array.argmax` | [`Array::argmax`] |
//! | `array.argmin` | [`Array::argmin`] |
//! | `array.astype` | [`Array::astype`] |
//! | `array.at` | [`Array::at`] |
//! | `array.conj` | [`Array::conjugate`] |
//! | `array.cos` | [`Array::cos`] |
//! | `array.cummax` | [`Array::cummax`] |
//! | `array.cummin` | [`Array::cummin`] |
//! | `array.cumprod` | [`Array::cumprod`] |
//! | `array.cumsum` | [`Array::cumsum`] |
//! | `array.diag` | [`diag()`] |
//! | `array.diagonal` | [`Array::diagonal`] |
//! | `array.dtype` | [`Array::dtype`] |
//! | `array.exp` | [`Array::exp`] |
//! | `array.flatten` | [`Array::flatten`] |
//! | `array.imag` | [`Array::imag`] |
//! | `array.item` | [`Array::item`] |
//! | `array.itemsize` | [`Array::itemsize()`] |
//! | `array.log` | [`Array::log`] |
//! | `array.log10` | [`Array::log10`] |
//! | `array.log1p` | [`Array::log1p`] |
//! | `array.log2` | [`Array::log2`] |
//! | `array.logcumsumexp` | [`Array::logcumsumexp`] |
//! | `array.logsumexp` | [`Array::logsumexp`] |
//! | `array.mT` | [`Array::matrix_transpose`] |
//! | `array.max` | [`Array::max`] |
//! | `array.mean` | [`Array::mean`] |
//! | `array.min` | [`Array::min`] |
//! | `array.moveaxis` | [`Array::moveaxis`] |
//! | `array.nbytes` | [`Array::nbytes`] |
//! | `array.ndim` | [`Array::ndim`] |
//! | `array.prod` | [`Array::prod`] |
//! | `array.real` | [`Array::real`] |
//! | `array.reciprocal` | [`Array::reciprocal`] |
//! | `array.reshape` | [`Array::reshape`] |
//! | `array.round` | [`Array::round`] |
//! | `array.rsqrt` | [`Array::rsqrt`] |
//! | `array.shape` | [`Array::shape`] |
//! | `array.sin` | [`Array::sin`] |
//! | `array.size` | [`Array::size`] |
//! | `array.split` | [`Array::split`] |
//! | `array.sqrt` | [`Array::sqrt`] |
//! | `array.square` | [`Array::square`] |
//! | `array.squeeze` | [`Array::squeeze`] |
//! | `array.std` | [`Array::std`] |
//! | `array.sum` | [`Array::sum`] |
//! | `array.swapaxes` | [`Array::swapaxes`] |
//! | `array.tolist` | [`Array::to_vec`] |
//! | `array.transpose` | [`Array::transpose`] |
//! | `array.var` | [`Array::var`] |
//! | `array.view` | [`Array::view`] |
//!
//! # `mlx.core.cuda`
//!
//! | Python | here |
//! |---|---|
//! | `mx.cuda.is_available` | [`Device::is_available`] |
//!
//! # `mlx.core.distributed`
//!
//! | Python | here |
//! |---|---|
//! | `mx.distributed.Group` | [`distributed::Group`] |
//! | `mx.distributed.all_gather` | [`distributed::all_gather`] |
//! | `mx.distributed.all_max` | [`distributed::all_max`] |
//! | `mx.distributed.all_min` | [`distributed::all_min`] |
//! | `mx.distributed.all_sum` | [`distributed::all_sum`] |
//! | `mx.distributed.init` | [`distributed::init`] |
//! | `mx.distributed.is_available` | [`distributed::is_available`] |
//! | `mx.distributed.recv` | [`distributed::recv`] |
//! | `mx.distributed.recv_like` | [`distributed::recv_like`] |
//! | `mx.distributed.send` | [`distributed::send`] |
//! | `mx.distributed.sum_scatter` | [`distributed::sum_scatter`] |
//!
//! # `mlx.core.fast`
//!
//! | Python | here |
//! |---|---|
//! | `mx.fast.cross_entropy` | [`fast::cross_entropy()`] |
//! | `mx.fast.cuda_kernel` | [`kernel::CudaKernel`] |
//! | `mx.fast.gated_delta_update` | [`fast::gated_delta()`] |
//! | `mx.fast.layer_norm` | [`fast::layer_norm()`] |
//! | `mx.fast.metal_kernel` | [`kernel::MetalKernel`] |
//! | `mx.fast.precompiled_cuda_kernel` | [`kernel::precompiled_cuda_kernel()`] |
//! | `mx.fast.rms_norm` | [`fast::rms_norm()`] |
//! | `mx.fast.rope` | [`fast::rope()`] |
//! | `mx.fast.scaled_dot_product_attention` | [`fast::scaled_dot_product_attention()`] |
//!
//! # `mlx.core.fft`
//!
//! | Python | here |
//! |---|---|
//! | `mx.fft.fft` | [`fft::fft()`] |
//! | `mx.fft.fft2` | [`fft::fft2()`] |
//! | `mx.fft.fftfreq` | [`fft::fftfreq()`] |
//! | `mx.fft.fftn` | [`fft::fftn()`] |
//! | `mx.fft.fftshift` | [`fft::fftshift()`] |
//! | `mx.fft.ifft` | [`fft::ifft()`] |
//! | `mx.fft.ifft2` | [`fft::ifft2()`] |
//! | `mx.fft.ifftn` | [`fft::ifftn()`] |
//! | `mx.fft.ifftshift` | [`fft::ifftshift()`] |
//! | `mx.fft.irfft` | [`fft::irfft()`] |
//! | `mx.fft.irfft2` | [`fft::irfft2()`] |
//! | `mx.fft.irfftn` | [`fft::irfftn()`] |
//! | `mx.fft.istft` | [`fft::istft()`] |
//! | `mx.fft.rfft` | [`fft::rfft()`] |
//! | `mx.fft.rfft2` | [`fft::rfft2()`] |
//! | `mx.fft.rfftfreq` | [`fft::rfftfreq()`] |
//! | `mx.fft.rfftn` | [`fft::rfftn()`] |
//! | `mx.fft.stft` | [`fft::stft()`] |
//!
//! # `mlx.core.linalg`
//!
//! | Python | here |
//! |---|---|
//! | `mx.linalg.cholesky` | [`linalg::cholesky()`] |
//! | `mx.linalg.cholesky_inv` | [`linalg::cholesky_inv()`] |
//! | `mx.linalg.cross` | [`linalg::cross()`] |
//! | `mx.linalg.det` | [`linalg::det()`] |
//! | `mx.linalg.eig` | [`linalg::eig()`] |
//! | `mx.linalg.eigh` | [`linalg::eigh()`] |
//! | `mx.linalg.eigvals` | [`linalg::eigvals()`] |
//! | `mx.linalg.eigvalsh` | [`linalg::eigvalsh()`] |
//! | `mx.linalg.inv` | [`linalg::inv()`] |
//! | `mx.linalg.lu` | [`linalg::lu()`] |
//! | `mx.linalg.lu_factor` | [`linalg::lu_factor()`] |
//! | `mx.linalg.norm` | [`linalg::norm()`] |
//! | `mx.linalg.pinv` | [`linalg::pinv()`] |
//! | `mx.linalg.qr` | [`linalg::qr()`] |
//! | `mx.linalg.slogdet` | [`linalg::slogdet()`] |
//! | `mx.linalg.solve` | [`linalg::solve()`] |
//! | `mx.linalg.solve_triangular` | [`linalg::solve_triangular()`] |
//! | `mx.linalg.svd` | [`linalg::svd()`] |
//! | `mx.linalg.tri_inv` | [`linalg::tri_inv()`] |
//!
//! # `mlx.core.metal`
//!
//! | Python | here |
//! |---|---|
//! | `mx.metal.clear_cache` | [`memory::clear_cache()`] |
//! | `mx.metal.device_info` | [`Device::info`] |
//! | `mx.metal.get_active_memory` | [`memory::active()`] |
//! | `mx.metal.get_cache_memory` | [`memory::cached()`] |
//! | `mx.metal.get_peak_memory` | [`memory::peak()`] |
//! | `mx.metal.is_available` | [`Device::is_available`] |
//! | `mx.metal.reset_peak_memory` | [`memory::reset_peak()`] |
//! | `mx.metal.set_cache_limit` | [`memory::set_cache_limit()`] |
//! | `mx.metal.set_memory_limit` | [`memory::set_memory_limit()`] |
//! | `mx.metal.set_wired_limit` | [`memory::set_wired_limit()`] |
//! | `mx.metal.start_capture` | [`kernel::start_capture()`] |
//! | `mx.metal.stop_capture` | [`kernel::stop_capture()`] |
//!
//! # `mlx.core.random`
//!
//! | Python | here |
//! |---|---|
//! | `mx.random.bernoulli` | [`random::bernoulli()`] |
//! | `mx.random.categorical` | [`random::categorical()`] |
//! | `mx.random.gumbel` | [`random::gumbel()`] |
//! | `mx.random.key` | [`random::key()`] |
//! | `mx.random.laplace` | [`random::laplace()`] |
//! | `mx.random.multivariate_normal` | [`random::multivariate_normal()`] |
//! | `mx.random.normal` | [`random::normal()`] |
//! | `mx.random.permutation` | [`random::permutation()`] |
//! | `mx.random.randint` | [`random::randint()`] |
//! | `mx.random.seed` | [`random::seed()`] |
//! | `mx.random.split` | [`random::split()`] |
//! | `mx.random.truncated_normal` | [`random::truncated_normal()`] |
//! | `mx.random.uniform` | [`random::uniform()`] |
//!
//! # `mlx.utils`
//!
//! | Python | here |
//! |---|---|
//! | `utils.tree_flatten` | parameters have names in a module's visitors: `mlx-nn` |
//! | `utils.tree_map` | a visitor of the module: `mlx-nn` |
//! | `utils.tree_map_with_path` | a visitor of the module gets the path: `mlx-nn` |
//! | `utils.tree_merge` | a visitor of the module: `mlx-nn` |
//! | `utils.tree_reduce` | a visitor of the module: `mlx-nn` |
//! | `utils.tree_unflatten` | parameters have names in a module's visitors: `mlx-nn` |

#[allow(unused_imports, reason = "for the links")]
use crate::*;

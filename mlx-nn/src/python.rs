//! Names: those of Python's `mlx.nn` and `mlx.optimizers`, and those of this crate.
//!
//! Each public name of Python's MLX 0.32.4 has a row with a link to the equivalent here, or the
//! reason why there is none. A test compares the rows with Python's names and with this crate's
//! items. The names of arrays and their operations are in `python` of [`mlx_core`].
//!
//! # `mlx.nn layers`
//!
//! | Python | here |
//! |---|---|
//! | `nn.ALiBi` | [`Alibi`] |
//! | `nn.AllToShardedLinear` | one process computes: there are no groups of machines |
//! | `nn.AvgPool1d` | [`AvgPool1d`] |
//! | `nn.AvgPool2d` | [`AvgPool2d`] |
//! | `nn.AvgPool3d` | [`AvgPool3d`] |
//! | `nn.BatchNorm` | [`BatchNorm`] |
//! | `nn.Bilinear` | [`Bilinear`] |
//! | `nn.CELU` | [`Activation::Celu`] |
//! | `nn.Conv1d` | [`Conv1d`] |
//! | `nn.Conv2d` | [`Conv2d`] |
//! | `nn.Conv3d` | [`Conv3d`] |
//! | `nn.ConvTranspose1d` | [`ConvTranspose1d`] |
//! | `nn.ConvTranspose2d` | [`ConvTranspose2d`] |
//! | `nn.ConvTranspose3d` | [`ConvTranspose3d`] |
//! | `nn.Dropout` | [`Dropout`] |
//! | `nn.Dropout2d` | [`Dropout2d`] |
//! | `nn.Dropout3d` | [`Dropout3d`] |
//! | `nn.ELU` | [`Activation::Elu`] |
//! | `nn.Embedding` | [`Embedding`] |
//! | `nn.FullyShardedModule` | one process computes: there are no groups of machines |
//! | `nn.GELU` | [`Activation::Gelu`] |
//! | `nn.GLU` | [`activation::glu_with()`] |
//! | `nn.GRU` | [`Gru`] |
//! | `nn.GroupNorm` | [`GroupNorm`] |
//! | `nn.HardShrink` | [`Activation::HardShrink`] |
//! | `nn.HardTanh` | [`Activation::HardTanh`] |
//! | `nn.Hardswish` | [`Activation::Hardswish`] |
//! | `nn.Identity` | [`Identity`] |
//! | `nn.InstanceNorm` | [`InstanceNorm`] |
//! | `nn.LSTM` | [`Lstm`] |
//! | `nn.LayerNorm` | [`LayerNorm`] |
//! | `nn.LeakyReLU` | [`Activation::LeakyRelu`] |
//! | `nn.Linear` | [`Linear`] |
//! | `nn.LogSigmoid` | [`Activation::LogSigmoid`] |
//! | `nn.LogSoftmax` | [`Activation::LogSoftmax`] |
//! | `nn.MaxPool1d` | [`MaxPool1d`] |
//! | `nn.MaxPool2d` | [`MaxPool2d`] |
//! | `nn.MaxPool3d` | [`MaxPool3d`] |
//! | `nn.Mish` | [`Activation::Mish`] |
//! | `nn.MultiHeadAttention` | [`MultiHeadAttention`] |
//! | `nn.PReLU` | [`PRelu`] |
//! | `nn.QQLinear` | [`QqLinear`] |
//! | `nn.QuantizedAllToShardedLinear` | one process computes: there are no groups of machines |
//! | `nn.QuantizedEmbedding` | [`Embedding`] with a quantised [`Weight`] |
//! | `nn.QuantizedLinear` | [`Linear`] with a quantised [`Weight`] |
//! | `nn.QuantizedShardedToAllLinear` | one process computes: there are no groups of machines |
//! | `nn.RMSNorm` | [`RmsNorm`] |
//! | `nn.RNN` | [`Rnn`] |
//! | `nn.ReLU` | [`Activation::Relu`] |
//! | `nn.ReLU2` | [`Activation::ReluSquared`] |
//! | `nn.ReLU6` | [`Activation::Relu6`] |
//! | `nn.RoPE` | [`Rope`] |
//! | `nn.SELU` | [`Activation::Selu`] |
//! | `nn.Sequential` | [`Sequential`] |
//! | `nn.ShardedToAllLinear` | one process computes: there are no groups of machines |
//! | `nn.SiLU` | [`Activation::Silu`] |
//! | `nn.Sigmoid` | [`Activation::Sigmoid`] |
//! | `nn.SinusoidalPositionalEncoding` | [`SinusoidalPositionalEncoding`] |
//! | `nn.Softmax` | [`Activation::Softmax`] |
//! | `nn.Softmin` | [`Activation::Softmin`] |
//! | `nn.Softplus` | [`Activation::Softplus`] |
//! | `nn.Softshrink` | [`Activation::Softshrink`] |
//! | `nn.Softsign` | [`Activation::Softsign`] |
//! | `nn.Step` | [`Activation::Step`] |
//! | `nn.Tanh` | [`Activation::Tanh`] |
//! | `nn.Transformer` | [`Transformer`] |
//! | `nn.TransformerDecoder` | [`TransformerDecoder`] |
//! | `nn.TransformerDecoderLayer` | [`TransformerDecoderLayer`] |
//! | `nn.TransformerEncoder` | [`TransformerEncoder`] |
//! | `nn.TransformerEncoderLayer` | [`TransformerEncoderLayer`] |
//! | `nn.Upsample` | [`Upsample`] |
//!
//! # `mlx.nn functions`
//!
//! | Python | here |
//! |---|---|
//! | `nn.average_gradients` | one process computes: there are no groups of machines |
//! | `nn.celu` | [`activation::celu()`] |
//! | `nn.elu` | [`activation::elu()`] |
//! | `nn.fully_shard` | one process computes: there are no groups of machines |
//! | `nn.gelu` | [`activation::gelu()`] |
//! | `nn.gelu_approx` | [`activation::gelu_approx()`] |
//! | `nn.gelu_fast_approx` | [`activation::gelu_fast_approx()`] |
//! | `nn.glu` | [`activation::glu()`] |
//! | `nn.hard_shrink` | [`activation::hard_shrink()`] |
//! | `nn.hard_tanh` | [`activation::hard_tanh()`] |
//! | `nn.hardswish` | [`activation::hardswish()`] |
//! | `nn.leaky_relu` | [`activation::leaky_relu()`] |
//! | `nn.log_sigmoid` | [`activation::log_sigmoid()`] |
//! | `nn.log_softmax` | [`activation::log_softmax()`] |
//! | `nn.mish` | [`activation::mish()`] |
//! | `nn.prelu` | [`activation::prelu()`] |
//! | `nn.quantize` | [`quantize::quantize()`] |
//! | `nn.relu` | [`activation::relu()`] |
//! | `nn.relu2` | [`activation::relu2()`] |
//! | `nn.relu6` | [`activation::relu6()`] |
//! | `nn.selu` | [`activation::selu()`] |
//! | `nn.sigmoid` | [`activation::sigmoid()`] |
//! | `nn.silu` | [`activation::silu()`] |
//! | `nn.softmax` | [`activation::softmax()`] |
//! | `nn.softmin` | [`activation::softmin()`] |
//! | `nn.softplus` | [`activation::softplus()`] |
//! | `nn.softshrink` | [`activation::softshrink()`] |
//! | `nn.softsign` | [`activation::softsign()`] |
//! | `nn.step` | [`activation::step()`] |
//! | `nn.tanh` | [`activation::tanh()`] |
//! | `nn.value_and_grad` | [`value_and_grad()`] |
//!
//! # `mlx.nn.Module`
//!
//! | Python | here |
//! |---|---|
//! | `Module.apply` | [`Module::apply`] |
//! | `Module.apply_to_modules` | a visitor: [`Module::visit_mut`] |
//! | `Module.children` | [`Module::children`] |
//! | `Module.eval` | [`Module::eval`] |
//! | `Module.filter_and_map` | [`Module::map`], and a filter of its result |
//! | `Module.freeze` | [`Module::freeze`] |
//! | `Module.is_module` | not needed: a module is a type that implements [`trait@Module`] |
//! | `Module.leaf_modules` | [`Module::leaf_modules`] |
//! | `Module.load_weights` | [`Module::load`] |
//! | `Module.modules` | [`Module::named_modules`] |
//! | `Module.named_modules` | [`Module::named_modules`] |
//! | `Module.parameters` | [`Module::parameters`] |
//! | `Module.save_weights` | [`Module::save`] |
//! | `Module.set_dtype` | [`Module::set_dtype`] |
//! | `Module.state` | [`Module::parameters`], buffers included |
//! | `Module.train` | [`Module::train`] |
//! | `Module.trainable_parameter_filter` | [`Module::trainable_parameters`] filters |
//! | `Module.trainable_parameters` | [`Module::trainable_parameters`] |
//! | `Module.training` | [`Module::is_training`] |
//! | `Module.unfreeze` | [`Module::unfreeze`] |
//! | `Module.update_modules` | a module is a field: assign another |
//! | `Module.valid_child_filter` | the fields of a module are known when it is compiled |
//! | `Module.valid_parameter_filter` | the fields of a module are known when it is compiled |
//!
//! # `mlx.nn.init`
//!
//! | Python | here |
//! |---|---|
//! | `nn.init.constant` | [`init::constant()`] |
//! | `nn.init.glorot_normal` | [`init::glorot_normal()`] |
//! | `nn.init.glorot_uniform` | [`init::glorot_uniform()`] |
//! | `nn.init.he_normal` | [`init::he_normal()`] |
//! | `nn.init.he_uniform` | [`init::he_uniform()`] |
//! | `nn.init.identity` | [`init::identity()`] |
//! | `nn.init.normal` | [`init::normal()`] |
//! | `nn.init.orthogonal` | [`init::orthogonal()`] |
//! | `nn.init.sparse` | [`init::sparse()`] |
//! | `nn.init.uniform` | [`init::uniform()`] |
//!
//! # `mlx.nn.losses`
//!
//! | Python | here |
//! |---|---|
//! | `nn.losses.binary_cross_entropy` | [`loss::binary_cross_entropy()`] |
//! | `nn.losses.cosine_similarity_loss` | [`loss::cosine_similarity()`] |
//! | `nn.losses.cross_entropy` | [`loss::cross_entropy()`] |
//! | `nn.losses.gaussian_nll_loss` | [`loss::gaussian_nll()`] |
//! | `nn.losses.hinge_loss` | [`loss::hinge()`] |
//! | `nn.losses.huber_loss` | [`loss::huber()`] |
//! | `nn.losses.kl_div_loss` | [`loss::kl_div()`] |
//! | `nn.losses.l1_loss` | [`loss::l1()`] |
//! | `nn.losses.log_cosh_loss` | [`loss::log_cosh()`] |
//! | `nn.losses.margin_ranking_loss` | [`loss::margin_ranking()`] |
//! | `nn.losses.mse_loss` | [`loss::mse()`] |
//! | `nn.losses.nll_loss` | [`loss::nll()`] |
//! | `nn.losses.smooth_l1_loss` | [`loss::smooth_l1()`] |
//! | `nn.losses.triplet_loss` | [`loss::triplet()`] |
//!
//! # `mlx.optimizers`
//!
//! | Python | here |
//! |---|---|
//! | `optimizers.AdaDelta` | [`AdaDelta`] |
//! | `optimizers.Adafactor` | [`Adafactor`] |
//! | `optimizers.Adagrad` | [`Adagrad`] |
//! | `optimizers.Adam` | [`Adam`] |
//! | `optimizers.AdamW` | [`AdamW`] |
//! | `optimizers.Adamax` | [`Adamax`] |
//! | `optimizers.Lion` | [`Lion`] |
//! | `optimizers.MultiOptimizer` | [`MultiOptimizer`] |
//! | `optimizers.Muon` | [`Muon`] |
//! | `optimizers.Optimizer` | [`Optimizer`] |
//! | `optimizers.RMSprop` | [`RmsProp`] |
//! | `optimizers.SGD` | [`Sgd`] |
//! | `optimizers.clip_grad_norm` | [`clip_grad_norm()`] |
//! | `optimizers.cosine_decay` | [`cosine_decay()`] |
//! | `optimizers.exponential_decay` | [`exponential_decay()`] |
//! | `optimizers.join_schedules` | [`join_schedules()`] |
//! | `optimizers.linear_schedule` | [`linear_schedule()`] |
//! | `optimizers.step_decay` | [`step_decay()`] |

#[allow(unused_imports, reason = "for the links")]
use crate::*;

//! Damaged files are refused with the name of the tensor.

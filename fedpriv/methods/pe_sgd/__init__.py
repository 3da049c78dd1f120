"""PE-SGD: coefficients of a gradient in the gradients of a public synthetic set."""

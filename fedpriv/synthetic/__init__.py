"""The made-up records whose gradients PE-SGD uses to express a private one."""

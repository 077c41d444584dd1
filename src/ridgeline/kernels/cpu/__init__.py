"""C++ kernels for CPUs: one subject per `.cpp`, all in one library of torch operators.

`build.py` compiles the sources once per machine, at first use; the wrappers in the folder above
declare the operators (schema, shapes of the outputs) and say what each computes. A `.cpp` is
written against torch's stable C++ interface (`torch/csrc/stable/`), which compiles in two seconds,
checks its inputs, and shares torch's OpenMP threads. What only some CPUs can do stands behind the
compiler's own macros, beside a way for all of them. Nothing that only Python needs enters here.
"""

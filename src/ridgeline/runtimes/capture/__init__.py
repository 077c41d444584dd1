"""What every runtime needs of a module: its graph, its structure, and whose fault a failure is.

    structure.py   inputs and outputs as a list of tensors and a description that JSON can hold
    program.py     a module as an exported program with free batch or size, or one line why not
    fixed_sizes.py a size that was to be free and that forward took for a number
    whole_lists.py a stride that is given once for both dimensions, written out
    wide_integers.py  counts in unsigned integers that runtimes lack, as int64
    half.py        a module in float16 that is called with float32
    onnx_file.py   an exported program as an ONNX file
    constants.py   numbers that forward reads out of parameters and buffers
    states.py      what a call of forward leaves behind, which a graph cannot
    blame.py       an error of torch or of a runtime as the user's line, and the cure
    sources.py     the user's line: of a traceback, of an operator in a graph
    torchvision_schemas.py  what a torchvision that was built for another torch lacks
    answering.py   a loaded program called as the module is
    quiet.py       conversion without a word on the user's terminal

What may not enter: a runtime. Start reading at `program.py`.
"""

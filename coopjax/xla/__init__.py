"""What the compiler says: targets, compiles, modules and where their buffers lie."""

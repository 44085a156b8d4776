"""llama.cpp behind checked calls: nothing else in the project touches its C API."""

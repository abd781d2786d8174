# The sources of the browser's runtime, for its build (src/wasm) and for the program's.
#
# thimble_runtime_sources(OUT) sets OUT to the engine's .cpp files: the program's, without those
# whose work is not done in a browser.
#
# thimble_runtime_digest(FILE) writes FILE at build time, a string literal with the digest of all
# sources and headers of the runtime. The runtime contains it, and `thimble export` refuses a
# runtime with another one, because the page would fail when it is opened.
#
# At build time this file runs as a script (cmake -P) that writes FILE.

get_filename_component(THIMBLE_RUNTIME_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(THIMBLE_RUNTIME_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

# The files below src/ that match PATTERNS.
function(thimble_runtime_glob out)
  list(TRANSFORM ARGN PREPEND "${THIMBLE_RUNTIME_ROOT}/src/")
  if(CMAKE_SCRIPT_MODE_FILE)
    file(GLOB files ${ARGN})
  else()
    file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  endif()
  set(${out} ${files} PARENT_SCOPE)
endfunction()

set(THIMBLE_RUNTIME_FOLDERS base config tokenizer tensor graph ops ops/cpu model pack formats infer)

function(thimble_runtime_sources out)
  list(TRANSFORM THIMBLE_RUNTIME_FOLDERS APPEND "/*.cpp" OUTPUT_VARIABLE patterns)
  thimble_runtime_glob(files ${patterns} serve/completion_request.cpp serve/fields.cpp)
  # See src/wasm/platform.cpp, ...
  list(FILTER files EXCLUDE REGEX "/(config/toml_read|base/(machine|plugin|file_ops|mapped_file))\\.cpp$")
  list(FILTER files EXCLUDE REGEX "/ops/(kernel_choice|cuda_plugin|cpu/(amx_tiles|gemm|sums))\\.cpp$")
  # ... browser.cpp; the others are not replaced.
  list(FILTER files EXCLUDE REGEX "/tokenizer/(regex|unicode_tables)\\.cpp$")
  list(FILTER files EXCLUDE REGEX "/(tokenizer/bpe_train|pack/(gptq|prune|pack_estimate))\\.cpp$")
  list(FILTER files EXCLUDE REGEX "/formats/(adapters|export|hugging_face|gguf|npz|pickle|int8_state|trace|pack_|weights_file).*$")
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# Everything that the digest is made of.
function(thimble_runtime_inputs out)
  thimble_runtime_sources(sources)
  list(TRANSFORM THIMBLE_RUNTIME_FOLDERS APPEND "/*.h" OUTPUT_VARIABLE patterns)
  thimble_runtime_glob(others ${patterns} serve/completion_request.h serve/fields.h tokenizer/unicode_tables.cpp wasm/*.cpp
                       wasm/*.h wasm/CMakeLists.txt)
  set(${out} ${sources} ${others} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  thimble_runtime_inputs(inputs)
  list(SORT inputs)
  set(all "")
  foreach(path IN LISTS inputs)
    file(SHA256 "${path}" digest)
    file(RELATIVE_PATH name "${THIMBLE_RUNTIME_ROOT}" "${path}")
    string(APPEND all "${digest} ${name}\n")
  endforeach()
  string(SHA256 digest "${all}")
  file(WRITE "${OUT}" "\"thimble.sources=${digest}\"\n")
  return()
endif()

function(thimble_runtime_digest file)
  thimble_runtime_inputs(inputs)
  add_custom_command(
    OUTPUT "${file}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${file}" -P "${THIMBLE_RUNTIME_SCRIPT}"
    DEPENDS ${inputs} "${THIMBLE_RUNTIME_SCRIPT}"
    VERBATIM)
endfunction()

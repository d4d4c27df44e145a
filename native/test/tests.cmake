# The native tests: `native_tests` (the engine on the CPU), `amx_tests` (the same with emulated tiles), `kernel_tests` (the CUDA kernels and their
# engine under emulation), and what scripts/gpu-check runs on a device. Included by CMakeLists.txt.
set(TEST_DIR ${CMAKE_CURRENT_SOURCE_DIR}/native/test)
set(TEST_DEFINITIONS TANDEM_STARTER_FOLDER="${CMAKE_CURRENT_SOURCE_DIR}/models/starter")
set(TEST_INCLUDES ${DEVICE_INCLUDES} ${TEST_DIR} ${TEST_DIR}/cuda)
file(GLOB CPU_TESTS CONFIGURE_DEPENDS ${TEST_DIR}/*_test.cc)
file(GLOB KERNEL_TESTS CONFIGURE_DEPENDS ${TEST_DIR}/cuda/*_test.cc)
# What gpu_engine measures, which a test runs on a tiny model.
file(GLOB ENGINE_PARTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/benchmarks/engine/gpu_engine/*.cc)
list(APPEND CPU_TESTS ${TEST_DIR}/tiny_model.cc)
list(APPEND KERNEL_TESTS ${TEST_DIR}/tiny_model.cc ${ENGINE_PARTS})
# Kernels that only tests run.
file(GLOB TEST_KERNELS CONFIGURE_DEPENDS ${TEST_DIR}/cuda/*.cu)

# The tests' own code, compiled once and without sanitizers, for the plain programs and for the sanitized ones.
function(add_test_code NAME)
  if(TANDEM_TEST_BUILD)
    add_library(${NAME} STATIC IMPORTED)
    set_target_properties(${NAME} PROPERTIES IMPORTED_LOCATION ${TANDEM_TEST_BUILD}/lib${NAME}.a)
  else()
    add_library(${NAME} STATIC ${ARGN})
    target_compile_options(${NAME} PRIVATE -O1)
    target_include_directories(${NAME} PRIVATE ${TEST_INCLUDES})
    target_link_libraries(${NAME} PRIVATE tested_core)
  endif()
endfunction()

# A program of some sources and all of a library of tests, which nothing calls by name. The sources come first, what they test
# among them: of a function that both compiled (inline, a template) the linker keeps the first, which is the sanitized one.
function(add_test_program NAME TEST_CODE)
  add_executable(${NAME} ${ARGN})
  target_include_directories(${NAME} PRIVATE ${TEST_INCLUDES})
  if(TARGET core AND NOT TANDEM_ADDON_BUILD)
    target_sources(${NAME} PRIVATE $<TARGET_OBJECTS:core> $<TARGET_OBJECTS:grammar>)
  endif()
  target_link_libraries(${NAME} PRIVATE -Wl,--whole-archive ${TEST_CODE} -Wl,--no-whole-archive tested_core)
  add_dependencies(${NAME} ${TEST_CODE})
endfunction()

if(TANDEM_TESTS)
  enable_testing()
  add_test_code(cpu_test_code ${CPU_TESTS})
  add_test_program(native_tests cpu_test_code ${TEST_DIR}/main.cc ${TEST_DIR}/harness.cc)
  # One test per instruction set: those that the machine lacks report themselves as skipped (exit code 77). COST: those that take longest begin
  # first, so that the cores end together; of the best set of a machine, which is one of three, more tests run.
  foreach(ISA scalar avx2 avx512 avx512_vnni avx512_bf16 amx)
    add_test(NAME native_${ISA} COMMAND native_tests)
    set_tests_properties(native_${ISA} PROPERTIES ENVIRONMENT "TANDEM_ISA=${ISA}" SKIP_RETURN_CODE 77 TIMEOUT 2400 COST 10)
  endforeach()
  set_tests_properties(native_amx native_avx512_bf16 native_avx512_vnni PROPERTIES COST 100)
  set_tests_properties(native_scalar PROPERTIES COST 50)
endif()

# The AMX kernels where there is no AMX: compiled again, against native/test/amx. They and has_tiles come before the library that holds the real
# ones, which the linker then leaves there. Machines without AVX-512 BF16 report the test as skipped.
if(TANDEM_TESTS)
  set(TILES ${TEST_DIR}/amx/tile_emulation.cc)
  set_source_files_properties(${TILES} PROPERTIES COMPILE_OPTIONS "-mavx512f;${QUIET}")
  add_test_program(amx_tests cpu_test_code ${TEST_DIR}/main.cc ${TEST_DIR}/harness.cc ${SRC}/simd/kernels_amx.cc ${TILES}
    ${TEST_DIR}/amx/tile_emulation_test.cc)
  target_compile_definitions(amx_tests PRIVATE TANDEM_TILE_EMULATION=1)
  add_test(NAME native_amx_emulated COMMAND amx_tests)
  set_tests_properties(native_amx_emulated PROPERTIES ENVIRONMENT "TANDEM_ISA=amx" SKIP_RETURN_CODE 77 TIMEOUT 2400 COST 50)
endif()

# The kernels and their engine on the CPU: g++ compiles the very .cu sources against native/test/emulation.
if(TANDEM_TESTS)
  file(GLOB EMULATION CONFIGURE_DEPENDS ${TEST_DIR}/emulation/*.cc)
  set(EMULATED_SOURCES)
  foreach(SOURCE ${KERNEL_SOURCES} ${TEST_KERNELS})
    get_filename_component(NAME ${SOURCE} NAME_WE)
    set(WRAPPER ${CMAKE_CURRENT_BINARY_DIR}/emulated/${NAME}.cc)
    file(GENERATE OUTPUT ${WRAPPER} CONTENT "#include \"${SOURCE}\"\n")
    list(APPEND EMULATED_SOURCES ${WRAPPER})
  endforeach()
  set_source_files_properties(${EMULATED_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # Before each access they call native/test/emulation/access_callbacks.cc, in the place of the sanitizer's library. Where the address sanitizer
  # looks at it instead, frames that have ended are not kept, which took a sixth of the time: what such a frame gives shows in the numbers.
  if(TANDEM_SANITIZE)
    set(WATCH "--param=asan-use-after-return=0")
  else()
    set(WATCH "-fsanitize=thread;--param=tsan-instrument-func-entry-exit=0;-g1")
  endif()
  set_source_files_properties(${EMULATED_SOURCES} PROPERTIES COMPILE_OPTIONS "${WATCH}")
  add_compile_definitions(${TEST_DEFINITIONS})
  add_test_code(kernel_test_code ${KERNEL_TESTS})
  # All of it in one and as fast as can be: most of the time of the tests is its.
  add_library(emulation OBJECT EXCLUDE_FROM_ALL ${EMULATION})
  target_include_directories(emulation PRIVATE ${TEST_INCLUDES})
  target_compile_options(emulation PRIVATE -O3 $<$<BOOL:${TANDEM_SANITIZE}>:${WATCH}>)
  add_test_program(kernel_tests kernel_test_code ${TEST_DIR}/cuda/main.cc ${TEST_DIR}/harness.cc ${EMULATED_SOURCES} ${DEVICE_SOURCES}
    $<TARGET_OBJECTS:emulation>)
  foreach(TARGET kernel_test_code kernel_tests)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  endforeach()
  set_target_properties(emulation PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  if(NOT TANDEM_TEST_BUILD)
    target_compile_definitions(kernel_test_code PRIVATE TANDEM_GPU_EMULATION=1)
  endif()
  foreach(TARGET emulation kernel_tests)
    target_compile_definitions(${TARGET} PRIVATE TANDEM_GPU_EMULATION=1 $<$<NOT:$<BOOL:${TANDEM_SANITIZE}>>:TANDEM_WATCHED_KERNELS=1>)
  endforeach()
  target_link_libraries(kernel_tests PRIVATE ${CMAKE_DL_LIBS})
  # By halves, beside each other. What the engine's tests compare with: the same arithmetic on every machine.
  foreach(HALF 1 2)
    add_test(NAME kernels_emulated_${HALF} COMMAND kernel_tests ${HALF}/2)
    set_tests_properties(kernels_emulated_${HALF} PROPERTIES ENVIRONMENT "TANDEM_ISA=scalar" TIMEOUT 2400 COST 200)
  endforeach()
endif()

# For a machine with a GPU (scripts/gpu-check).
if(TANDEM_GPU_TESTS AND CMAKE_CUDA_COMPILER)
  if(TANDEM_ADDON_BUILD)
    add_library(tested_device STATIC IMPORTED)
    set_target_properties(tested_device PROPERTIES IMPORTED_LOCATION ${TANDEM_ADDON_BUILD}/libdevice.a IMPORTED_LINK_INTERFACE_LANGUAGES CUDA)
    target_include_directories(tested_device INTERFACE ${DEVICE_INCLUDES} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    target_link_libraries(tested_device INTERFACE tested_core)
  else()
    add_library(tested_device ALIAS device)
  endif()
  add_executable(gpu_tests ${TEST_DIR}/cuda/main.cc ${TEST_DIR}/harness.cc ${KERNEL_TESTS} ${TEST_KERNELS})
  add_executable(gpu_bench ${CMAKE_CURRENT_SOURCE_DIR}/benchmarks/kernels/gpu_bench.cu)
  add_executable(gpu_engine ${CMAKE_CURRENT_SOURCE_DIR}/benchmarks/engine/gpu_engine.cc ${ENGINE_PARTS} ${TEST_DIR}/tiny_model.cc)
  target_compile_options(gpu_tests PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  set_target_properties(gpu_tests gpu_engine PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  foreach(TARGET gpu_tests gpu_bench gpu_engine)
    target_include_directories(${TARGET} PRIVATE ${TEST_INCLUDES})
    target_compile_definitions(${TARGET} PRIVATE ${TEST_DEFINITIONS})
    set_target_properties(${TARGET} PROPERTIES LINKER_LANGUAGE CUDA)
    # cuBLASLt is opened at run time.
    target_link_libraries(${TARGET} PRIVATE tested_device ${CMAKE_DL_LIBS})
  endforeach()
endif()

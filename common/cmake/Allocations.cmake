# flashladder_count_allocations(TARGET SCOPE): adds allocations() of common/check/allocations.hpp to the target, and has
# the linker send every call that gets memory through it: in what TARGET makes (PRIVATE), or what links it (PUBLIC).
function(flashladder_count_allocations target scope)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/common/check/allocations.cpp)
  set(wrapped malloc calloc realloc aligned_alloc mmap _Znwm _Znam _ZnwmRKSt9nothrow_t _ZnwmSt11align_val_t
              _ZnamSt11align_val_t _ZnwmSt11align_val_tRKSt9nothrow_t)
  list(TRANSFORM wrapped PREPEND -Wl,--wrap=)
  target_link_options(${target} ${scope} ${wrapped})
endfunction()

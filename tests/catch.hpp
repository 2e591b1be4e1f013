#pragma once
// Catch2 as installed: version 3 (Ubuntu 24.04), else the single header of version 2 (Debian 12).
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

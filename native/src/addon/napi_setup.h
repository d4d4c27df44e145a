// The only file that includes the N-API headers, so that their configuration is the same everywhere.
#pragma once
#define NAPI_VERSION 8
#ifndef NAPI_CPP_EXCEPTIONS
#define NAPI_CPP_EXCEPTIONS
#endif
#include <napi.h>

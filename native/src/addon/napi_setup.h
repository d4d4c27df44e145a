// The only file that includes the N-API headers, so that their configuration is the same everywhere.
#pragma once
#define NAPI_VERSION 8
#ifndef NAPI_CPP_EXCEPTIONS
#define NAPI_CPP_EXCEPTIONS
#endif
// While an environment is torn down nothing can be thrown into it any more; such errors are dropped instead of ending the process.
#define NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS
#include <napi.h>

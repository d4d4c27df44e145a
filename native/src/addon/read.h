// Strict reading of JavaScript values: the wrong type throws a TypeError, a value out of range a RangeError, both naming the field.
// Everything is copied on the JS thread.
#pragma once
#include <string>
#include <vector>

#include "addon/napi_setup.h"
#include "base/error.h"

namespace tandem::addon {

// An own or inherited property of an object; undefined counts as missing.
Napi::Value read_property(const Napi::Object& object, const char* field);
Napi::Object read_object(const Napi::Value& value, const char* field);
// A number without fraction within +-2^53.
int64_t read_int(const Napi::Object& object, const char* field);
double read_number(const Napi::Object& object, const char* field);
bool read_bool(const Napi::Object& object, const char* field);
std::string read_string(const Napi::Object& object, const char* field);
// A BigInt within the signed or the unsigned 64-bit range, as its 64 bits.
uint64_t read_bits64(const Napi::Object& object, const char* field);
std::vector<int32_t> read_int32_array(const Napi::Object& object, const char* field);
std::vector<float> read_float32_array(const Napi::Object& object, const char* field);
std::vector<double> read_float64_array(const Napi::Object& object, const char* field);
std::vector<uint8_t> read_uint8_array(const Napi::Object& object, const char* field);
// The same of a value itself, such as an argument; `name` is for the error.
int64_t as_int(const Napi::Value& value, const char* name);
std::vector<int32_t> as_int32_array(const Napi::Value& value, const char* name);
std::vector<float> as_float32_array(const Napi::Value& value, const char* name);
std::vector<uint8_t> as_uint8_array(const Napi::Value& value, const char* name);
// An array of at most `most` items; `item(value, index)` reads each.
template <typename Item>
void read_array(const Napi::Value& value, const char* field, uint32_t most, const Item& item) {
  if (!value.IsArray()) throw Error(ErrorKind::kType, std::string(field) + " must be an array");
  auto array = value.As<Napi::Array>();
  uint32_t length = array.Length();
  if (length > most) throw Error(ErrorKind::kRange, std::string(field) + " has too many items");
  for (uint32_t i = 0; i < length; ++i) item(Napi::Value(array[i]), i);
}

// Rethrows an Error as the JavaScript error of its kind.
[[noreturn]] void throw_js(Napi::Env env, const Error& error);
Napi::Value js_error(Napi::Env env, ErrorKind kind, const std::string& message);

// Runs `body` and turns every C++ exception into a JavaScript one.
template <typename Body>
Napi::Value guarded(Napi::Env env, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw_js(env, error);
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw_js(env, Error(ErrorKind::kState, "out of memory"));
  } catch (const std::exception& error) {
    throw_js(env, Error(ErrorKind::kState, error.what()));
  }
}

}  // namespace tandem::addon

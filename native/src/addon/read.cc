#include "addon/read.h"

#include <cmath>

namespace tandem::addon {
namespace {

[[noreturn]] void wrong_type(const char* field, const char* expected) {
  throw Error(ErrorKind::kType, std::string(field) + " must be " + expected);
}

template <typename T>
std::vector<T> as_typed(const Napi::Value& value, const char* field, napi_typedarray_type type, const char* expected) {
  if (!value.IsTypedArray()) wrong_type(field, expected);
  napi_typedarray_type found;
  size_t length = 0;
  void* data = nullptr;
  napi_value buffer = nullptr;
  if (napi_get_typedarray_info(value.Env(), value, &found, &length, &data, &buffer, nullptr) != napi_ok || found != type) {
    wrong_type(field, expected);
  }
  bool detached = false;
  if (napi_is_detached_arraybuffer(value.Env(), buffer, &detached) == napi_ok && detached)
    wrong_type(field, "an array that is not detached");
  if (!data || length == 0) return {};
  auto* items = static_cast<const T*>(data);
  return std::vector<T>(items, items + length);
}

double as_number(const Napi::Value& value, const char* field) {
  if (!value.IsNumber()) wrong_type(field, "a number");
  return value.As<Napi::Number>().DoubleValue();
}

}  // namespace

Napi::Value read_property(const Napi::Object& object, const char* field) { return object.Get(field); }

Napi::Object read_object(const Napi::Value& value, const char* field) {
  if (!value.IsObject() || value.IsArray() || value.IsFunction()) wrong_type(field, "an object");
  return value.As<Napi::Object>();
}

double read_number(const Napi::Object& object, const char* field) { return as_number(read_property(object, field), field); }

int64_t as_int(const Napi::Value& value, const char* name) {
  double number = as_number(value, name);
  if (!(std::fabs(number) <= 9007199254740991.0) || number != std::trunc(number)) {
    throw Error(ErrorKind::kRange, std::string(name) + " must be a whole number");
  }
  return int64_t(number);
}

int64_t read_int(const Napi::Object& object, const char* field) { return as_int(read_property(object, field), field); }

bool read_bool(const Napi::Object& object, const char* field) {
  Napi::Value value = read_property(object, field);
  if (!value.IsBoolean()) wrong_type(field, "a boolean");
  return value.As<Napi::Boolean>().Value();
}

std::string read_string(const Napi::Object& object, const char* field) {
  Napi::Value value = read_property(object, field);
  if (!value.IsString()) wrong_type(field, "a string");
  return value.As<Napi::String>().Utf8Value();
}

uint64_t read_bits64(const Napi::Object& object, const char* field) {
  Napi::Value value = read_property(object, field);
  if (!value.IsBigInt()) wrong_type(field, "a BigInt");
  bool lossless = false;
  int64_t number = value.As<Napi::BigInt>().Int64Value(&lossless);
  if (lossless) return uint64_t(number);
  uint64_t bits = value.As<Napi::BigInt>().Uint64Value(&lossless);
  if (!lossless) throw Error(ErrorKind::kRange, std::string(field) + " must fit in 64 bits");
  return bits;
}

std::vector<int32_t> as_int32_array(const Napi::Value& value, const char* name) {
  return as_typed<int32_t>(value, name, napi_int32_array, "an Int32Array");
}

std::vector<float> as_float32_array(const Napi::Value& value, const char* name) {
  return as_typed<float>(value, name, napi_float32_array, "a Float32Array");
}

std::vector<uint8_t> as_uint8_array(const Napi::Value& value, const char* name) {
  return as_typed<uint8_t>(value, name, napi_uint8_array, "a Uint8Array");
}

std::vector<int32_t> read_int32_array(const Napi::Object& object, const char* field) {
  return as_int32_array(read_property(object, field), field);
}

std::vector<float> read_float32_array(const Napi::Object& object, const char* field) {
  return as_float32_array(read_property(object, field), field);
}

std::vector<double> read_float64_array(const Napi::Object& object, const char* field) {
  return as_typed<double>(read_property(object, field), field, napi_float64_array, "a Float64Array");
}

std::vector<uint8_t> read_uint8_array(const Napi::Object& object, const char* field) {
  return as_uint8_array(read_property(object, field), field);
}

Napi::Value js_error(Napi::Env env, ErrorKind kind, const std::string& message) {
  if (kind == ErrorKind::kType) return Napi::TypeError::New(env, message).Value();
  if (kind == ErrorKind::kRange) return Napi::RangeError::New(env, message).Value();
  return Napi::Error::New(env, message).Value();
}

void throw_js(Napi::Env env, const Error& error) {
  if (error.kind() == ErrorKind::kType) throw Napi::TypeError::New(env, error.what());
  if (error.kind() == ErrorKind::kRange) throw Napi::RangeError::New(env, error.what());
  throw Napi::Error::New(env, error.what());
}

}  // namespace tandem::addon

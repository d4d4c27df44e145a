// Native objects behind JavaScript handles: wrapped, finalized with them, and taken back only by whoever knows their tag.
#pragma once
#include <utility>

#include "addon/napi_setup.h"
#include "base/error.h"

namespace tandem::addon {

// Two copies of the addon in one process must not take each other's objects: each tag was drawn for its class, and is checked before every unwrap.
constexpr napi_type_tag kModelTag = {0x6d0e5a44c9b34f0bull, 0x9d6c2c7aa4e1b8f3ull};
constexpr napi_type_tag kAdapterTag = {0x2f6b1c0d8a5e4793ull, 0xb81d3e6f90c2a754ull};
constexpr napi_type_tag kVocabularyTag = {0x51d0c3a7e84b9f26ull, 0xb7e2914d06fa583cull};
constexpr napi_type_tag kConstraintTag = {0x3e9a51c7f0426db8ull, 0x96d1f84a2b7c05e3ull};

// `object` keeps `held` for as long as it lives.
template <typename Held>
void wrap(Napi::Object& object, Held held, const napi_type_tag& tag) {
  auto* owned = new Held(std::move(held));
  auto finalize = [](napi_env, void* data, void*) { delete static_cast<Held*>(data); };
  if (napi_wrap(object.Env(), object, owned, finalize, nullptr, nullptr) != napi_ok) {
    delete owned;
    throw Napi::Error::New(object.Env(), "could not create the handle");
  }
  napi_type_tag_object(object.Env(), object, &tag);
}

// What wrap() put there; throws TypeError with `message` for anything else.
template <typename Held>
Held unwrap(const Napi::Value& value, const napi_type_tag& tag, const char* message) {
  bool matches = false;
  void* data = nullptr;
  if (!value.IsObject() || napi_check_object_type_tag(value.Env(), value, &tag, &matches) != napi_ok || !matches ||
      napi_unwrap(value.Env(), value, &data) != napi_ok) {
    throw Error(ErrorKind::kType, message);
  }
  return *static_cast<Held*>(data);
}

}  // namespace tandem::addon

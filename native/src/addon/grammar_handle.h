// The JavaScript side of structured output: vocabularies, compilation, matchers.
#pragma once
#include "addon/napi_setup.h"

namespace tandem::addon {

// createVocabulary(bytes, offsets, endTokens) -> Promise<NativeVocabulary>
Napi::Value create_vocabulary(const Napi::CallbackInfo& info);
// compileGrammar(source, options) -> {result: Promise<NativeGrammar | {keyword, message}>, cancel()}
Napi::Value compile_grammar(const Napi::CallbackInfo& info);

}  // namespace tandem::addon

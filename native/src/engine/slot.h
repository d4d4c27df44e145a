// What an engine knows of one sequence between steps.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plan.h"

namespace tandem::engine {

struct Slot {
  bool open = false;
  int64_t prompt_length = 0;
  int64_t position = 0;  // tokens whose keys are stored
  int32_t last_token = -1;
  bool ended = false;   // by what it sampled last
  int64_t awaited = 0;  // queued steps that sample it
  SequenceParams params;
  std::vector<int32_t> banned_early;  // before min_tokens: params.stop_ids and params.barred_ids
  std::vector<int32_t> pages;
  ops::TokenHistory history;  // filled only where a control needs it
  int64_t prompt_logprobs = -1;
  std::shared_ptr<const model::Adapter> adapter;
  std::shared_ptr<Constraint> constraint;
  std::vector<float>
      last_hidden;  // of the position before `position`, where the next token comes with a later plan and may be scored; or empty
};

}  // namespace tandem::engine

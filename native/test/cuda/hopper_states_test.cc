// Decode attention whose states one more warp stores and merges, or of few splits the blocks of a cluster: the same bits.
#include "attention_batch.h"
#include "cuda/attention/attention_variants.h"
#include "engine_fixture.h"

namespace tandem::test {
namespace {

using cuda::AttentionKernel;
using cuda::AttentionStates;

AttentionShape handed(AttentionShape shape) {
  shape.kernel = AttentionKernel::kWgmma;
  shape.states = AttentionStates::kHanded;
  return shape;
}

TEST(hopper_handed_states_are_merged) {
  if (!on_hopper()) return;
  // More rows than a warp merges at a time, an odd number of them, and more splits than it loads at a time.
  for (const AttentionShape& shape : {AttentionShape{.heads = 3, .kv_heads = 1, .dim = 128}, {.heads = 16, .kv_heads = 2, .dim = 96}}) {
    check_attention(AttentionBatch(handed(shape), {{1100, 1}, {256, 1}, {250, 1}, {257, 2}, {513, 1}}, 31));
  }
  check_attention(AttentionBatch(handed({.heads = 16, .kv_heads = 1, .dim = 128}), {{2700, 1}, {300, 1}}, 32));
  check_attention(AttentionBatch(handed({.heads = 2, .kv_heads = 1, .dim = 128, .window = 300}), {{700, 1}, {900, 1}, {40, 1}}, 33));
}

TEST(hopper_handed_states_are_those_of_each_item) {
  if (!on_hopper()) return;
  check_lists(handed({.heads = 2, .kv_heads = 1, .dim = 128}));
  check_lists(handed({.heads = 4, .kv_heads = 2, .dim = 96, .window = 100}));
}

TEST(hopper_handed_states_beside_shared_prefixes) {
  if (!on_hopper()) return;
  check_prefixes(handed({.heads = 6, .kv_heads = 2, .dim = 128}), {600, 30, 513, 580, 520, 540, 700}, {{2, 0, 4}, {5, 6}}, 1);
}

TEST(hopper_handed_states_recorded_once_serve_other_lengths) {
  if (!on_hopper()) return;
  for (int64_t few_blocks : {int64_t(0), kAnyBlocks}) check_replays(handed({.heads = 4, .kv_heads = 1, .dim = 128}), few_blocks);
}

// Of more splits than there are multiprocessors, one sequence has two.
TEST_ENGINE(hopper_engine_has_the_same_bits_with_handed_states) {
  if (!on_hopper()) return;
  TinyModel source = tiny_for_device();
  source.spec.heads = source.spec.kv_heads = 12;
  source.spec.head_dim = 128;
  source.spec.layers = 1;
  source.spec.window_layers.assign(1, 0);
  std::vector<Job> own = {device_job(12, 262, 5, 1)}, states;
  for (uint64_t i = 0; i < 6; ++i) own.push_back(device_job(20 + i, 3, 8));
  states = own;
  engine::Options options = device_options();
  options.max_sequences = 7;
  options.max_model_len = 288;
  for (auto [jobs, setting] : {std::pair{&own, "own"}, {&states, "handed"}}) {
    const SettingTo chosen("TANDEM_CUDA_STATES", setting);
    auto model = load_with_wgmma(source, {"TANDEM_CUDA_ATTENTION"});
    Driver driver = device_driver(model, options);
    run_together(driver, *jobs);
  }
  check_same_jobs(own, states);
}

TEST(hopper_handed_states_need_attention_that_has_them) {
  if (!on_hopper()) return;
  const SettingTo attention("TANDEM_CUDA_ATTENTION", "mma"), states("TANDEM_CUDA_STATES", "handed");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_STATES=handed needs TANDEM_CUDA_ATTENTION=wgmma", load_on_device(tiny_for_device()));
}

TEST(hopper_handed_states_are_chosen_by_name) {
  for (int major : {8, 9, 12}) CHECK(cuda::attention_states(nullptr, major, 0) == AttentionStates::kOwn);
  CHECK(cuda::attention_states("handed", 9, 0) == AttentionStates::kHanded);
  for (AttentionStates states : {AttentionStates::kOwn, AttentionStates::kHanded}) CHECK(cuda::variant_of(states).kernel == states);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_STATES=handed needs a GPU of compute capability 9.x, and this one has 8.6",
              cuda::attention_states("handed", 8, 6));
  CHECK_ERROR(kRange, "TANDEM_CUDA_STATES must be own or handed", cuda::attention_states("given", 9, 0));
}

}  // namespace
}  // namespace tandem::test

#include "attention_batch.h"

namespace tandem::test {
namespace {

TEST(gpu_attention_matches_plain_loops) {
  check_attention(AttentionBatch({}, {{1, 1}, {70, 1}, {33, 33}, {530, 3}}, 1));
  check_attention(AttentionBatch({.heads = 9, .kv_heads = 3, .dim = 32}, {{20, 9}, {5, 1}}, 2));
  check_attention(AttentionBatch({.heads = 16, .kv_heads = 1, .dim = 128}, {{66, 2}}, 3));
  check_attention(AttentionBatch({.heads = 2, .kv_heads = 2, .dim = 96}, {{18, 18}}, 4));
}

TEST(gpu_attention_sees_its_window_only) {
  check_attention(AttentionBatch({.heads = 4, .kv_heads = 2, .dim = 32, .window = 5}, {{3, 3}, {90, 20}}, 5));
  // The window begins with the last position of a split, with the first of the next one, and between.
  check_attention(AttentionBatch({.heads = 4, .kv_heads = 2, .dim = 32, .window = 40}, {{295, 1}, {296, 1}, {552, 1}, {600, 2}}, 6));
}

TEST(gpu_attention_merges_splits) {
  check_attention(AttentionBatch({.heads = 16, .kv_heads = 1, .dim = 32}, {{4200, 1}, {256, 1}, {257, 2}}, 7));
  check_attention(AttentionBatch({.heads = 16, .kv_heads = 1, .dim = 96}, {{520, 1}}, 8));
  check_attention(AttentionBatch({.heads = 3, .kv_heads = 1, .dim = 128}, {{300, 5}}, 9));
}

TEST(gpu_attention_rows_do_not_depend_on_their_batch) { check_rows_alone({.heads = 4, .kv_heads = 2, .dim = 32}); }

TEST(gpu_attention_reads_shared_prefixes_once) {
  check_prefixes({.heads = 6, .kv_heads = 2, .dim = 32}, {600, 30, 513, 580, 520, 540, 700}, {{2, 0, 4}, {5, 6}}, 1);
  check_prefixes({.heads = 8, .kv_heads = 1, .dim = 32, .window = 90}, {560, 515, 600}, {{0, 1}}, 1);
  check_prefixes({.heads = 2, .kv_heads = 1, .dim = 64}, {1030, 1025, 1100}, {{0, 1, 2}}, 2);
}

TEST(gpu_attention_takes_lists_of_mixed_lengths) { check_lists({.heads = 4, .kv_heads = 2, .dim = 32}); }

TEST(gpu_attention_recorded_once_serves_other_lengths) { check_replays({.heads = 4, .kv_heads = 1, .dim = 32}); }

TEST(gpu_attention_takes_pages_that_are_not_there_for_zeros) { check_missing_pages({.heads = 4, .kv_heads = 2, .dim = 32}); }

TEST(gpu_attention_refuses_what_does_not_fit) {
  cuda::PagedAttention args{};
  args.kv = {nullptr, nullptr, 1, 2, 64};
  args.heads = 3;
  CHECK_ERROR(kRange, "heads", cuda::paged_attention(args, nullptr));
  args.heads = 4;
  args.longest = 10;
  args.tile_count = 3;
  CHECK_ERROR(kRange, "tile_count", cuda::paged_attention(args, nullptr));
  args.tile_count = 4;
  CHECK_ERROR(kRange, "scale", cuda::paged_attention(args, nullptr));
  args.scale = 1;
  args.kv.dim = 80;
  CHECK_ERROR(kUnsupported, "heads of this size", cuda::paged_attention(args, nullptr));
}

}  // namespace
}  // namespace tandem::test

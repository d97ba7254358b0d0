#include "gpu_worker/data/png.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr png_alloc_size_t kMaxChunkBytes = 1 << 20;  // of chunks other than pixels

// libpng reports an error by a call that must not return; see jpeg.cc.
struct PngState {
  png_structp png;
  png_infop info;
  const uint8_t* next;
  size_t left;
  char message[200];
};
static_assert(std::is_trivially_destructible_v<PngState>);

[[noreturn]] void FailPng(png_structp png, png_const_charp message) {
  PngState* const state = static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state->message, sizeof(state->message), "%s", message);
  png_longjmp(png, 1);
}

void IgnorePngWarning(png_structp, png_const_charp) {}

void TakePngBytes(png_structp png, png_bytep to, size_t size) {
  PngState* const state = static_cast<PngState*>(png_get_io_ptr(png));
  if (size > state->left) png_error(png, "the file ends too early");
  std::memcpy(to, state->next, size);
  state->next += size;
  state->left -= size;
}

// The size, as the header says it.
struct PngSize {
  png_uint_32 height, width;
};

// Reads up to the pixels. They will be of 8 bits, grey or color.
bool ReadPngHeader(PngState* state, PngSize* size) {
  if (setjmp(png_jmpbuf(state->png)) != 0) return false;
  png_structp const png = state->png;
  png_set_read_fn(png, state, TakePngBytes);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // our limits are checked below
  png_set_chunk_malloc_max(png, kMaxChunkBytes);
  // Texts, profiles and the like are not even unpacked.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, state->info);
  size->height = png_get_image_height(png, state->info);
  size->width = png_get_image_width(png, state->info);
  return true;
}

// How pixels are laid out after all conversions.
struct PngLayout {
  size_t row_bytes;
  int channels, bits;
};

bool ConvertPng(PngState* state, PngLayout* layout) {
  if (setjmp(png_jmpbuf(state->png)) != 0) return false;
  png_structp const png = state->png;
  const png_byte color = png_get_color_type(png, state->info);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  png_set_scale_16(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, state->info);
  layout->row_bytes = png_get_rowbytes(png, state->info);
  layout->channels = png_get_channels(png, state->info);
  layout->bits = png_get_bit_depth(png, state->info);
  return true;
}

bool ReadPngRows(PngState* state, png_bytepp rows) {
  if (setjmp(png_jmpbuf(state->png)) != 0) return false;
  png_read_image(state->png, rows);
  png_read_end(state->png, nullptr);
  return true;
}

// Frees what libpng holds.
class PngOwner {
 public:
  explicit PngOwner(absl::Span<const uint8_t> file) : state_() {
    state_.next = file.data();
    state_.left = file.size();
    std::snprintf(state_.message, sizeof(state_.message), "no memory");
    state_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state_, FailPng, IgnorePngWarning);
    if (state_.png != nullptr) state_.info = png_create_info_struct(state_.png);
  }
  ~PngOwner() {
    if (state_.png != nullptr) png_destroy_read_struct(&state_.png, &state_.info, nullptr);
  }
  PngOwner(const PngOwner&) = delete;
  PngOwner& operator=(const PngOwner&) = delete;

  PngState* state() { return &state_; }
  bool created() const { return state_.info != nullptr; }
  absl::Status Error() const {
    return DataMissing(absl::StatusCode::kDataLoss, absl::StrCat("PNG: ", state_.message));
  }

 private:
  PngState state_;
};

}  // namespace

absl::StatusOr<Picture> DecodePng(absl::Span<const uint8_t> file, int64_t channels) {
  PngOwner owner(file);
  if (!owner.created()) return HostOutOfMemory("PNG");
  PngSize size = {};
  if (!ReadPngHeader(owner.state(), &size)) return owner.Error();
  absl::Status status = CheckPictureSize(size.height, size.width);
  if (!status.ok()) return InFront("PNG", status);
  PngLayout layout = {};
  if (!ConvertPng(owner.state(), &layout)) return owner.Error();

  const size_t row_bytes = size_t{size.width} * static_cast<size_t>(layout.channels);
  if (layout.bits != 8 || (layout.channels != 1 && layout.channels != 3) ||
      layout.row_bytes != row_bytes) {
    return InvalidSpec(absl::StrCat("PNG: pixels of ", layout.channels, " channels of ",
                                    layout.bits, " bits, want 1 or 3 of 8"));
  }
  Picture picture = NewPicture({layout.channels, size.height, size.width});
  std::vector<png_bytep> rows(size.height);
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = picture.bytes.get() + y * row_bytes;
  if (!ReadPngRows(owner.state(), rows.data())) return owner.Error();
  return WithChannels(std::move(picture), channels);
}

}  // namespace capstan::data

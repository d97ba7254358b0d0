#include "gpu_worker/data/jpeg.h"

// jpeglib.h needs size_t and FILE.
#include <cstddef>
#include <cstdio>
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr int kMaxScans = 100;
constexpr long kMaxJpegMemory = 512L << 20;

// libjpeg reports an error by a call that must not return. It jumps over frames of C alone: each
// function below that calls setjmp has no object with a destructor, and nothing that it changes
// after setjmp is read after a jump, except through the pointer.
enum class JpegFailure {
  kDamaged,
  kRefused,  // a limit, or a kind of JPEG that libjpeg does not know
  kMemory,   // the host is out of it
};

struct JpegState {
  jpeg_error_mgr errors;  // must be first: libjpeg only knows this part
  jmp_buf failed;
  char message[JMSG_LENGTH_MAX];
  JpegFailure failure;
  jpeg_progress_mgr progress;
  jpeg_decompress_struct info;
};
static_assert(std::is_trivially_destructible_v<JpegState>);

JpegState* StateOf(j_common_ptr info) { return reinterpret_cast<JpegState*>(info->err); }

[[noreturn]] void FailJpeg(j_common_ptr info) {
  JpegState* const state = StateOf(info);
  (*info->err->format_message)(info, state->message);
  switch (info->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
      state->failure = JpegFailure::kMemory;
      break;
    case JERR_NO_BACKING_STORE:
      std::snprintf(state->message, sizeof(state->message), "needs more than %ld MiB to be decoded",
                    kMaxJpegMemory >> 20);
      [[fallthrough]];
    case JERR_BAD_PRECISION:
    case JERR_IMAGE_TOO_BIG:
    case JERR_SOF_UNSUPPORTED:
      state->failure = JpegFailure::kRefused;
      break;
    default:
      state->failure = JpegFailure::kDamaged;
  }
  std::longjmp(state->failed, 1);
}

// Level -1 is a warning: the data are damaged and libjpeg would invent pixels, except for these.
void HearJpegMessage(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:  // bytes between two segments
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:  // some cameras write numbers that only progressive files use
      return;
    default:
      FailJpeg(info);
  }
}

void PrintNothing(j_common_ptr) {}

// Called now and then. A file of a few bytes can ask for thousands of passes over a large picture.
void CountScans(j_common_ptr info) {
  JpegState* const state = StateOf(info);
  if (state->info.input_scan_number <= kMaxScans) return;
  std::snprintf(state->message, sizeof(state->message), "more than %d scans", kMaxScans);
  state->failure = JpegFailure::kRefused;
  std::longjmp(state->failed, 1);
}

bool ReadJpegHeader(JpegState* state, const uint8_t* bytes, size_t size) {
  if (setjmp(state->failed) != 0) return false;
  jpeg_create_decompress(&state->info);
  state->info.mem->max_memory_to_use = kMaxJpegMemory;
  state->info.progress = &state->progress;
  jpeg_mem_src(&state->info, bytes, static_cast<unsigned long>(size));
  jpeg_read_header(&state->info, TRUE);
  return true;
}

bool StartJpeg(JpegState* state, J_COLOR_SPACE colors, unsigned smaller) {
  if (setjmp(state->failed) != 0) return false;
  jpeg_decompress_struct* const info = &state->info;
  info->out_color_space = colors;
  info->scale_num = 1;
  info->scale_denom = smaller;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  info->do_block_smoothing = FALSE;
  jpeg_calc_output_dimensions(info);
  return true;
}

bool ReadJpegRows(JpegState* state, uint8_t* to, size_t stride) {
  if (setjmp(state->failed) != 0) return false;
  jpeg_decompress_struct* const info = &state->info;
  jpeg_start_decompress(info);
  while (info->output_scanline < info->output_height) {
    JSAMPROW row = to + info->output_scanline * stride;
    jpeg_read_scanlines(info, &row, 1);
  }
  jpeg_finish_decompress(info);
  return true;
}

// Frees what libjpeg holds.
class JpegOwner {
 public:
  JpegOwner() : state_() {
    state_.info.err = jpeg_std_error(&state_.errors);
    state_.errors.error_exit = FailJpeg;
    state_.errors.emit_message = HearJpegMessage;
    state_.errors.output_message = PrintNothing;
    state_.progress.progress_monitor = CountScans;
  }
  ~JpegOwner() { jpeg_destroy_decompress(&state_.info); }
  JpegOwner(const JpegOwner&) = delete;
  JpegOwner& operator=(const JpegOwner&) = delete;

  JpegState* state() { return &state_; }
  absl::Status Error() const {
    const std::string what = absl::StrCat("JPEG: ", state_.message);
    switch (state_.failure) {
      case JpegFailure::kDamaged:
        return DataMissing(absl::StatusCode::kDataLoss, what);
      case JpegFailure::kRefused:
        return InvalidSpec(what);
      case JpegFailure::kMemory:
        return HostOutOfMemory("JPEG");
    }
    return absl::InternalError(what);
  }

 private:
  JpegState state_;
};

// Adobe's files have 255 for no ink, all others 0.
Picture WithoutInk(const Picture& ink, bool inverted) {
  Picture result = NewPicture({3, ink.shape.height, ink.shape.width});
  const uint8_t* from = ink.bytes.get();
  uint8_t* to = result.bytes.get();
  const int flip = inverted ? 0 : 255;
  for (int64_t i = 0; i < ink.shape.height * ink.shape.width; ++i, from += 4, to += 3) {
    for (int c = 0; c < 3; ++c) {
      to[c] = static_cast<uint8_t>(((from[c] ^ flip) * (from[3] ^ flip) + 127) / 255);
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<Picture> DecodeJpeg(absl::Span<const uint8_t> file, const PictureShape& want) {
  JpegOwner owner;
  JpegState* const state = owner.state();
  jpeg_decompress_struct& info = state->info;
  if (!ReadJpegHeader(state, file.data(), file.size())) return owner.Error();
  absl::Status status = CheckPictureSize(info.image_height, info.image_width);
  if (!status.ok()) return InFront("JPEG", status);

  // After their end, arithmetic codes go on with zeros: a file of some bytes would be a picture.
  if (info.arith_code != FALSE) return InvalidSpec("JPEG: arithmetic coding, want Huffman codes");

  J_COLOR_SPACE colors = JCS_RGB;
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
      colors = JCS_GRAYSCALE;
      break;
    case JCS_YCbCr:
      // Y is the grey picture.
      if (want.channels == 1) colors = JCS_GRAYSCALE;
      break;
    case JCS_RGB:
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      colors = JCS_CMYK;
      break;
    default:
      return InvalidSpec(absl::StrCat("JPEG of ", info.num_components,
                                      " unknown components, want grey, YCbCr, RGB, CMYK or YCCK"));
  }
  unsigned smaller = 8;
  while (smaller > 1 &&
         (info.image_height < want.height * smaller || info.image_width < want.width * smaller)) {
    smaller /= 2;
  }
  if (!StartJpeg(state, colors, smaller)) return owner.Error();

  Picture picture = NewPicture({info.out_color_components, info.output_height, info.output_width});
  if (!ReadJpegRows(state, picture.bytes.get(),
                    static_cast<size_t>(picture.shape.width * picture.shape.channels))) {
    return owner.Error();
  }
  if (colors == JCS_CMYK) picture = WithoutInk(picture, info.saw_Adobe_marker != FALSE);
  return WithChannels(std::move(picture), want.channels);
}

}  // namespace capstan::data

#include "client/text/screen_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace capstan::client {
namespace {

constexpr absl::string_view kPlain = "\033[0m";

// The bytes and the columns of the character or colour code at the start of `text`.
struct Piece {
  size_t size = 0;
  int columns = 0;
};

Piece FirstPiece(absl::string_view text) {
  if (absl::StartsWith(text, "\033[")) {
    const size_t end = text.find('m');
    return {end == absl::string_view::npos ? text.size() : end + 1, 0};
  }
  size_t size = 1;
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;
  return {size, 1};
}

}  // namespace

int ShownWidth(absl::string_view line) {
  int width = 0;
  while (!line.empty()) {
    const Piece piece = FirstPiece(line);
    width += piece.columns;
    line.remove_prefix(piece.size);
  }
  return width;
}

std::string CutLine(absl::string_view line, int width) {
  std::string out;
  bool coloured = false;
  while (!line.empty()) {
    const Piece piece = FirstPiece(line);
    if (piece.columns > width) return coloured ? absl::StrCat(out, kPlain) : out;
    width -= piece.columns;
    const absl::string_view text = line.substr(0, piece.size);
    if (piece.columns == 0) coloured = text != kPlain;
    absl::StrAppend(&out, text);
    line.remove_prefix(piece.size);
  }
  return out;
}

std::string FitLines(absl::string_view lines, int width, int height) {
  std::vector<std::string> out;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (static_cast<int>(out.size()) == std::max(height, 1)) break;
    out.push_back(CutLine(line, std::max(width, 0)));
  }
  return absl::StrJoin(out, "\n");
}

int RowsOf(absl::string_view lines, int width) {
  int rows = 0;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    rows += std::max(1, (ShownWidth(line) + width - 1) / std::max(width, 1));
  }
  return rows;
}

}  // namespace capstan::client

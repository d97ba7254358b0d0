#include "gpu_worker/data/synthetic_digits.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace capstan::data {
namespace {

struct Point {
  float x, y;
};

// A stroke of at most 9 points in a box of [0, 1] x [0, 1], y downwards. Curved strokes pass
// through their points as a Catmull-Rom spline; straight ones are polylines.
struct Stroke {
  bool curved;
  int count;
  Point points[9];
};

// A way of writing one digit: at most 3 strokes.
struct Glyph {
  int count;
  Stroke strokes[3];
};

// Two ways for each digit.
constexpr Glyph kGlyphs[SyntheticDigits::kClasses][2] = {
    // 0: round, narrow
    {{1,
      {{true,
        9,
        {{.5f, 0},
         {.83f, .13f},
         {.97f, .5f},
         {.83f, .87f},
         {.5f, 1},
         {.17f, .87f},
         {.03f, .5f},
         {.17f, .13f},
         {.5f, 0}}}}},
     {1,
      {{true,
        9,
        {{.55f, 0},
         {.78f, .15f},
         {.82f, .5f},
         {.7f, .88f},
         {.45f, 1},
         {.22f, .85f},
         {.18f, .5f},
         {.3f, .12f},
         {.55f, 0}}}}}},
    // 1: a line, with a flag and a foot
    {{1, {{false, 2, {{.5f, 0}, {.5f, 1}}}}},
     {2, {{false, 3, {{.25f, .22f}, {.52f, 0}, {.52f, 1}}}, {false, 2, {{.3f, 1}, {.74f, 1}}}}}},
    // 2: with a sharp corner, with a loop
    {{2,
      {{true, 6, {{.08f, .25f}, {.3f, .02f}, {.72f, .03f}, {.88f, .3f}, {.55f, .65f}, {.08f, 1}}},
       {false, 2, {{.08f, 1}, {.95f, 1}}}}},
     {1,
      {{true,
        9,
        {{.12f, .2f},
         {.45f, 0},
         {.82f, .15f},
         {.75f, .45f},
         {.4f, .8f},
         {.12f, .98f},
         {.1f, .8f},
         {.4f, .82f},
         {.95f, .98f}}}}}},
    // 3: round, with a flat top
    {{2,
      {{true, 5, {{.1f, .12f}, {.45f, 0}, {.85f, .14f}, {.78f, .37f}, {.42f, .47f}}},
       {true, 5, {{.42f, .47f}, {.85f, .57f}, {.9f, .83f}, {.5f, 1}, {.06f, .88f}}}}},
     {2,
      {{false, 3, {{.1f, 0}, {.85f, 0}, {.42f, .42f}}},
       {true, 5, {{.42f, .42f}, {.82f, .52f}, {.88f, .82f}, {.5f, 1}, {.06f, .9f}}}}}},
    // 4: closed, open
    {{2, {{false, 3, {{.66f, 0}, {.04f, .66f}, {.96f, .66f}}}, {false, 2, {{.66f, 0}, {.66f, 1}}}}},
     {2,
      {{false, 3, {{.2f, 0}, {.12f, .52f}, {.9f, .52f}}}, {false, 2, {{.8f, .04f}, {.72f, 1}}}}}},
    // 5: angular, round
    {{2,
      {{false, 3, {{.86f, 0}, {.2f, 0}, {.14f, .45f}}},
       {true, 6, {{.14f, .45f}, {.5f, .37f}, {.86f, .52f}, {.88f, .8f}, {.5f, 1}, {.08f, .9f}}}}},
     {2,
      {{true,
        6,
        {{.28f, .02f}, {.22f, .42f}, {.62f, .42f}, {.88f, .7f}, {.55f, .98f}, {.1f, .92f}}},
       {false, 2, {{.28f, .02f}, {.88f, .04f}}}}}},
    // 6: slanted, upright
    {{1,
      {{true,
        8,
        {{.76f, 0},
         {.35f, .25f},
         {.12f, .65f},
         {.3f, .96f},
         {.68f, .97f},
         {.86f, .74f},
         {.58f, .52f},
         {.14f, .68f}}}}},
     {1,
      {{true,
        8,
        {{.5f, 0},
         {.2f, .35f},
         {.14f, .75f},
         {.45f, 1},
         {.82f, .84f},
         {.78f, .58f},
         {.45f, .5f},
         {.16f, .7f}}}}}},
    // 7: plain, with a bar
    {{1, {{false, 3, {{.05f, 0}, {.95f, 0}, {.36f, 1}}}}},
     {2, {{false, 3, {{.08f, .02f}, {.9f, 0}, {.4f, 1}}}, {false, 2, {{.3f, .5f}, {.86f, .5f}}}}}},
    // 8: two rings, one line
    {{2,
      {{true,
        7,
        {{.5f, .48f},
         {.17f, .36f},
         {.22f, .08f},
         {.5f, 0},
         {.78f, .08f},
         {.83f, .36f},
         {.5f, .48f}}},
       {true,
        7,
        {{.5f, .48f}, {.1f, .62f}, {.14f, .9f}, {.5f, 1}, {.86f, .9f}, {.9f, .62f}, {.5f, .48f}}}}},
     {1,
      {{true,
        9,
        {{.8f, .12f},
         {.45f, 0},
         {.2f, .2f},
         {.5f, .48f},
         {.84f, .78f},
         {.5f, 1},
         {.16f, .8f},
         {.5f, .48f},
         {.8f, .12f}}}}}},
    // 9: bent, straight
    {{1,
      {{true,
        8,
        {{.86f, .3f},
         {.45f, .49f},
         {.14f, .27f},
         {.35f, .02f},
         {.72f, .05f},
         {.87f, .32f},
         {.76f, .7f},
         {.4f, 1}}}}},
     {2,
      {{true,
        7,
        {{.8f, .25f}, {.48f, .5f}, {.16f, .34f}, {.2f, .1f}, {.5f, 0}, {.78f, .08f}, {.8f, .25f}}},
       {false, 2, {{.8f, .1f}, {.74f, 1}}}}}},
};

// The range of variation of an image from its glyph. Each number is uniform in its range.
constexpr float kHalfTan = 0.22f;           // tan of half the rotation: up to 25 degrees each way
constexpr float kShear = 0.2f;              // x += shear * y
constexpr float kWidth[2] = {12, 18};       // pixels
constexpr float kHeight[2] = {16, 20};      // pixels
constexpr float kShift = 3.0f;              // pixels, each way, of the center
constexpr float kBend = 0.05f;              // of the box; each point moves by itself
constexpr float kRadius[2] = {0.7f, 1.7f};  // half the thickness, pixels
constexpr float kInk[2] = {180, 255};
constexpr float kPaper[2] = {0, 20};
constexpr float kNoise[2] = {5, 30};  // half the range of a pixel's own noise

constexpr int kPiecesPerCurve = 3;  // straight pieces between two points of a curve

// The random words of one image, one after the other.
class Draws {
 public:
  Draws(const training::Philox& philox, int64_t index, uint32_t split)
      : philox_(philox),
        counter_{0, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), split},
        block_(philox_.Block(counter_)) {}

  uint32_t Word() {
    if (used_ == 4) {
      used_ = 0;
      ++counter_[0];
      block_ = philox_.Block(counter_);
    }
    return block_[used_++];
  }
  float Between(float low, float high) { return low + (high - low) * training::ToUniform(Word()); }
  float Between(const float (&range)[2]) { return Between(range[0], range[1]); }

 private:
  const training::Philox& philox_;
  training::PhiloxCounter counter_;
  training::PhiloxBlock block_;
  int used_ = 0;
};

int32_t LabelOf(uint32_t word) {
  return static_cast<int32_t>((uint64_t{word} * SyntheticDigits::kClasses) >> 32);
}

// Squared distance of each pixel's center from the nearest stroke, if below `reach`.
class Canvas {
 public:
  explicit Canvas(float reach) : reach_(reach) { nearest_.fill(1e6f); }

  void Line(Point a, Point b) {
    const float dx = b.x - a.x, dy = b.y - a.y;
    const float inverse = 1.0f / std::max(dx * dx + dy * dy, 1e-6f);
    const int left = Clip(std::min(a.x, b.x) - reach_),
              right = Clip(std::max(a.x, b.x) + reach_ + 1);
    const int top = Clip(std::min(a.y, b.y) - reach_),
              bottom = Clip(std::max(a.y, b.y) + reach_ + 1);
    for (int row = top; row < bottom; ++row) {
      float* const line = &nearest_[row * SyntheticDigits::kSide];
      const float py = static_cast<float>(row) - a.y;
      for (int column = left; column < right; ++column) {
        const float px = static_cast<float>(column) - a.x;
        const float along = std::min(std::max((px * dx + py * dy) * inverse, 0.0f), 1.0f);
        const float ex = px - along * dx, ey = py - along * dy;
        line[column] = std::min(line[column], ex * ex + ey * ey);
      }
    }
  }

  float Squared(int pixel) const { return nearest_[pixel]; }

 private:
  static int Clip(float position) {
    return static_cast<int>(std::min(std::max(position, 0.0f), float{SyntheticDigits::kSide}));
  }

  const float reach_;
  std::array<float, SyntheticDigits::kPixels> nearest_;
};

Point CatmullRom(Point p0, Point p1, Point p2, Point p3, float t) {
  const auto blend = [t](float a, float b, float c, float d) {
    return 0.5f * (2.0f * b + (c - a) * t + (2.0f * a - 5.0f * b + 4.0f * c - d) * (t * t) +
                   (3.0f * b - a - 3.0f * c + d) * (t * t * t));
  };
  return {blend(p0.x, p1.x, p2.x, p3.x), blend(p0.y, p1.y, p2.y, p3.y)};
}

}  // namespace

int32_t SyntheticDigits::Label(int64_t index) const {
  return LabelOf(Draws(philox_, index, split_).Word());
}

void SyntheticDigits::Draw(int64_t index, uint8_t* pixels) const {
  Draws draws(philox_, index, split_);
  const int32_t label = LabelOf(draws.Word());
  const Glyph& glyph = kGlyphs[label][draws.Word() >> 31];

  // The rotation from t = tan(angle / 2), with sine and cosine without a library call.
  const float t = draws.Between(-kHalfTan, kHalfTan);
  const float cosine = (1.0f - t * t) / (1.0f + t * t), sine = 2.0f * t / (1.0f + t * t);
  const float shear = draws.Between(-kShear, kShear);
  const float width = draws.Between(kWidth), height = draws.Between(kHeight);
  const float center_x = 0.5f * (kSide - 1) + draws.Between(-kShift, kShift);
  const float center_y = 0.5f * (kSide - 1) + draws.Between(-kShift, kShift);
  const float radius = draws.Between(kRadius);
  const float ink = draws.Between(kInk), paper = draws.Between(kPaper);
  const float noise = draws.Between(kNoise);

  Canvas canvas(radius + 0.5f);
  for (int s = 0; s < glyph.count; ++s) {
    const Stroke& stroke = glyph.strokes[s];
    std::array<Point, 9> at;
    for (int i = 0; i < stroke.count; ++i) {
      const float y = (stroke.points[i].y - 0.5f + draws.Between(-kBend, kBend)) * height;
      const float x =
          (stroke.points[i].x - 0.5f + draws.Between(-kBend, kBend)) * width - shear * y;
      at[i] = {center_x + cosine * x - sine * y, center_y + sine * x + cosine * y};
    }
    for (int i = 0; i + 1 < stroke.count; ++i) {
      if (!stroke.curved) {
        canvas.Line(at[i], at[i + 1]);
        continue;
      }
      const Point before = at[std::max(i - 1, 0)], after = at[std::min(i + 2, stroke.count - 1)];
      Point from = at[i];
      for (int piece = 1; piece <= kPiecesPerCurve; ++piece) {
        const float along = static_cast<float>(piece) / kPiecesPerCurve;
        const Point to = CatmullRom(before, at[i], at[i + 1], after, along);
        canvas.Line(from, to);
        from = to;
      }
    }
  }

  // Noise for four pixels from one word, one byte each.
  for (int pixel = 0; pixel < kPixels; pixel += 4) {
    const uint32_t word = draws.Word();
    for (int k = 0; k < 4; ++k) {
      const float distance = std::sqrt(canvas.Squared(pixel + k));
      const float cover = std::min(std::max(radius + 0.5f - distance, 0.0f), 1.0f);
      const float grain = static_cast<float>((word >> (8 * k)) & 255) * (2.0f / 255.0f) - 1.0f;
      // Adds a half, so that truncation rounds.
      const float value = paper + (ink - paper) * cover + noise * grain + 0.5f;
      pixels[pixel + k] = static_cast<uint8_t>(std::min(std::max(value, 0.0f), 255.0f));
    }
  }
}

}  // namespace capstan::data

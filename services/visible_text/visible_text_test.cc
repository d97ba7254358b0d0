#include "services/visible_text/visible_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

TEST(VisibleTextTest, WhatATerminalObeysOrHidesIsAQuestionMark) {
  EXPECT_EQ(VisibleText("loss 0.5, \xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "loss 0.5, \xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(VisibleText("a\x1B[2Jb\nc\td\x7F"), "a?[2Jb?c?d?");
  EXPECT_EQ(VisibleText("a\xC2\x9B"
                        "2Jb"),
            "a?2Jb");  // U+009B
  EXPECT_EQ(VisibleText("a\x9B"
                        "2Jb"),
            "a?2Jb");  // the byte alone
  EXPECT_EQ(VisibleText("\xE2\x80\xAE"
                        "dab\xE2\x80\xAC"),
            "?dab?");  // U+202E, U+202C
  EXPECT_EQ(VisibleText("\xE2\x81\xA6x\xE2\x81\xA9\xE2\x80\x8B\xEF\xBB\xBF"), "?x???");
  EXPECT_EQ(VisibleText("\xE2\x80\xA8\xE2\x80\x8E\xD8\x9C"), "???");
  // Not UTF-8: truncated, overlong, a surrogate, beyond the last code point.
  EXPECT_EQ(VisibleText("\xE2\x80"), "??");
  EXPECT_EQ(VisibleText("\xC0\x9B"), "??");
  EXPECT_EQ(VisibleText("\xE0\x82\x9B"), "???");
  EXPECT_EQ(VisibleText("\xED\xA0\x80"), "???");
  EXPECT_EQ(VisibleText("\xF4\x90\x80\x80"), "????");
  EXPECT_EQ(VisibleText(absl::string_view("a\0b", 3)), "a?b");
}

TEST(VisibleTextTest, ACharacterIsShownWholeOrNotAtAll) {
  EXPECT_EQ(SizeIfShown("ab"), 1u);
  EXPECT_EQ(SizeIfShown("\xE2\x82\xACuro"), 3u);
  EXPECT_EQ(SizeIfShown("\xF0\x9F\x98\x80"), 4u);
  // A control character, U+009B, U+202E, a byte that is not UTF-8, a truncated character.
  for (const char* text : {"\x1B", "\xC2\x9B", "\xE2\x80\xAE", "\x9B", "\xE2\x82"}) {
    EXPECT_EQ(SizeIfShown(text), 0u) << text;
  }
}

TEST(VisibleTextTest, LinesKeepTheirFeedsTabsAndColours) {
  EXPECT_EQ(VisibleLines("a\tb\n\x1B[31mred\x1B[0m\n\x1B[1;2mx\x1B[m"),
            "a\tb\n\x1B[31mred\x1B[0m\n\x1B[1;2mx\x1B[m");
  EXPECT_EQ(VisibleLines("\x1B[2J\x1B]0;title\x07\x1B[31"), "?[2J?]0;title??[31");
  EXPECT_EQ(VisibleLines("a\r\x08\xC2\x9B\xE2\x80\xAE\n"), "a????\n");
  EXPECT_EQ(VisibleLines("\x1B[" + std::string(100, '1') + "m"),
            "?[" + std::string(100, '1') + "m");
}

TEST(VisibleTextTest, JsonSaysTheSameWithoutThem) {
  const std::string text =
      "a\x1B\xC2\x9B"
      "b\xE2\x80\xAE\xF3\xA0\x80\x81\x7F\xC3\xA9";
  const std::string json = VisibleJson(nlohmann::json{{"text", text}}.dump());
  EXPECT_EQ(json, "{\"text\":\"a\\u001b\\u009bb\\u202e\\udb40\\udc01\\u007f\xC3\xA9\"}");
  EXPECT_EQ(nlohmann::json::parse(json)["text"].get<std::string>(), text);
}

}  // namespace
}  // namespace capstan::services

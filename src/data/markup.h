// Text without markup: Markdown and HTML.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "data/text_files.h"

namespace thimble {

// Converts Markdown to plain text, line by line:
//
//   # A *fine* [book](http://..)   ->   A fine book
//
// Removed: heading and quote marks, bullets, rules, emphasis, code fences and backticks (their
// content stays), the addresses of links and images, table borders. List numbers stay. For a text
// given in pieces, `in_code` is true if the piece begins inside a fenced code block;
// ends_in_code() returns the value for the next piece.
std::string strip_markdown(std::string_view text, bool in_code = false);
bool ends_in_code(std::string_view text, bool in_code = false);

// The text of a Markdown file. The marks of headings, lists, emphasis and code stay, because they
// are text that people write and read. Removed: the front matter, HTML comments and tags, the
// addresses of links and images ("[a book](http://..)" becomes "a book") and their definitions.
// Code stays as it is.
std::string markdown_text(std::string_view text);

// The text of an HTML page. Blocks such as paragraphs and list items end lines, white space is
// collapsed except in <pre>, entities are decoded. Removed: tags, comments, the head, scripts,
// styles and embedded pictures.
std::string html_text(std::string_view html);

// The converted file as a stream. The file is read completely; more than 1 GB is an error.
std::unique_ptr<ByteStream> open_markdown(const std::filesystem::path& file);
std::unique_ptr<ByteStream> open_html(const std::filesystem::path& file);

}  // namespace thimble

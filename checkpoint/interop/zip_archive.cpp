// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/zip_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

namespace troupe::detail {
namespace {

constexpr std::uint64_t alignment = 64;
constexpr std::uint64_t local_header_size = 30;
constexpr std::uint64_t zip64_field_size = 20;
constexpr std::uint64_t extra_head_size = 4;
constexpr zip_uint16_t padding_field = 0x4246;  // "FB", the id that torch uses

std::string error_text(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path) : path_(path), archive_(nullptr, zip_discard) {
  int code = 0;
  archive_.reset(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (!archive_)
    throw Error(ErrorCode::io, fmt::format("cannot read {} as a zip archive: {}", path.string(), error_text(code)));
}

void ZipReader::refuse(const std::string& why) const {
  throw Error(ErrorCode::io, fmt::format("{}: {}", path_.string(), why));
}

std::string ZipReader::folder_with(std::string_view name) const {
  const auto ending = fmt::format("/{}", name);
  const auto count = zip_get_num_entries(archive_.get(), 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* entry = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0);
    const std::string_view text = entry != nullptr ? entry : "";
    if (text.ends_with(ending) && text.find('/') == text.size() - ending.size())
      return std::string(text.substr(0, text.size() - name.size()));
  }
  refuse(fmt::format("the archive has no {}: it was not made by torch.save()", name));
}

std::optional<std::uint64_t> ZipReader::size(const std::string& name) const {
  zip_stat_t status;
  zip_stat_init(&status);
  if (zip_stat(archive_.get(), name.c_str(), 0, &status) != 0) return std::nullopt;
  constexpr zip_uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((status.valid & needed) != needed || status.comp_method != ZIP_CM_STORE ||
      status.encryption_method != ZIP_EM_NONE)
    refuse(fmt::format("{} is compressed or encrypted, which torch.save() does not do", name));
  std::error_code failure;
  if (status.size > std::filesystem::file_size(path_, failure))
    refuse(fmt::format("{} is larger than the whole file", name));
  return status.size;
}

void ZipReader::read(const std::string& name, char* out, std::uint64_t size) const {
  const std::unique_ptr<zip_file_t, decltype(&zip_fclose)> file(zip_fopen(archive_.get(), name.c_str(), 0), zip_fclose);
  if (!file) refuse(fmt::format("{} cannot be read: {}", name, zip_strerror(archive_.get())));
  for (std::uint64_t done = 0;;) {
    // One byte more than there is: only the read that sees the end compares the CRC.
    char beyond = 0;
    const auto count = done < size ? zip_fread(file.get(), out + done, size - done) : zip_fread(file.get(), &beyond, 1);
    if (count < 0) refuse(fmt::format("{} cannot be read: {}", name, zip_file_strerror(file.get())));
    if (done == size && count == 0) return;
    if (done == size || count == 0) refuse(fmt::format("{} is not as long as the archive says", name));
    done += static_cast<std::uint64_t>(count);
  }
}

std::string ZipReader::read(const std::string& name, std::uint64_t most) const {
  const auto length = size(name);
  if (!length) refuse(fmt::format("the archive has no {}", name));
  if (*length > most) refuse(fmt::format("{} has {} bytes, more than the {} it may have", name, *length, most));
  std::string bytes(*length, '\0');
  read(name, bytes.data(), *length);
  return bytes;
}

ZipWriter::ZipWriter(const std::filesystem::path& path) : file_(path), archive_(nullptr, zip_discard) {
  int code = 0;
  archive_.reset(zip_open(file_.path().c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code));
  if (!archive_) throw Error(ErrorCode::io, fmt::format("cannot write {}: {}", path.string(), error_text(code)));
}

void ZipWriter::fail(const char* what) const {
  throw Error(ErrorCode::io,
              fmt::format("{} {} failed: {}", what, file_.path().string(), zip_strerror(archive_.get())));
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  zip_source_t* source = zip_source_buffer(archive_.get(), bytes.data(), bytes.size(), 0);
  if (source == nullptr) fail("writing");
  const auto index = zip_file_add(archive_.get(), name.c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    fail("writing");
  }
  const auto entry = static_cast<zip_uint64_t>(index);
  const auto head =
      end_ + local_header_size + name.size() + (bytes.size() > UINT32_MAX ? zip64_field_size : 0) + extra_head_size;
  const std::string padding((alignment - head % alignment) % alignment, 'Z');
  const bool good =
      zip_set_file_compression(archive_.get(), entry, ZIP_CM_STORE, 0) == 0 &&
      zip_file_set_mtime(archive_.get(), entry, 315'532'800, 0) == 0 &&  // 1980: equal content, equal files
      zip_file_extra_field_set(archive_.get(), entry, padding_field, ZIP_EXTRA_FIELD_NEW,
                               reinterpret_cast<const zip_uint8_t*>(padding.data()),
                               static_cast<zip_uint16_t>(padding.size()), ZIP_FL_LOCAL) == 0;
  if (!good) fail("writing");
  end_ = head + padding.size() + bytes.size();
}

void ZipWriter::finish() {
  if (zip_close(archive_.get()) != 0) fail("writing");
  archive_.release();  // NOLINT(bugprone-unused-return-value): zip_close() freed it
  file_.commit();
}

}  // namespace troupe::detail

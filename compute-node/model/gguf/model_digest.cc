#include "compute-node/model/gguf/model_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include <absl/strings/escaping.h>
#include <openssl/evp.h>

#include "common/base/check.h"
#include "common/base/random_bytes.h"
#include "common/base/unique_fd.h"

namespace cairn::compute {
namespace {

constexpr std::size_t kReadBytes = 1 << 20;
// Before the digests of a split model's parts, which together are hashed: no file's digest is made
// this way. Stored conversations are found by what comes out: never change it.
constexpr std::string_view kPartsHeader = "cairn-split-model 1\n";
constexpr std::string_view kCacheHeader = "cairn-model-digest 1 ";

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

absl::StatusOr<std::string> HashFile(int fd, const std::string& path) {
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return Internal("start SHA-256 of '{}': OpenSSL refused", path);
  }
  std::vector<char> buffer(kReadBytes);
  while (true) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return ErrnoStatus(errno, fmt::format("read '{}' for its digest", path));
    }
    if (count == 0) {
      break;
    }
    if (EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(count)) != 1) {
      return Internal("hash '{}': OpenSSL refused", path);
    }
  }
  std::string digest(kModelDigestBytes, '\0');
  if (EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) !=
      1) {
    return Internal("finish SHA-256 of '{}': OpenSSL refused", path);
  }
  return digest;
}

// What must be equal for a cached digest to count.
std::string FileIdentity(const struct stat& info) {
  return fmt::format("{}-{}-{}-{}-{}-{}-{}", info.st_dev, info.st_ino, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
}

std::string CacheText(const std::string& identity, const std::string& digest) {
  return fmt::format("{}{} {}\n", kCacheHeader, identity, ToHex(digest));
}

// The digest in the cache file, empty if there is none that can be trusted.
std::string ReadCache(const std::filesystem::path& cache, const std::string& identity) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(cache, error)) return "";  // a pipe would be waited for
  std::ifstream stream(cache, std::ios::binary);
  const std::string hex_start = fmt::format("{}{} ", kCacheHeader, identity);
  std::string text(hex_start.size() + kModelDigestBytes * 2 + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream || text.compare(0, hex_start.size(), hex_start) != 0) {
    return "";
  }
  const std::string digest =
      absl::HexStringToBytes(text.substr(hex_start.size(), kModelDigestBytes * 2));
  // Writing it again must give the same bytes: this catches everything that is no hexadecimal.
  return CacheText(identity, digest) == text ? digest : "";
}

// Through a temporary name, so that a reader never sees half a file. Failure only costs time next
// time.
void WriteCache(const std::filesystem::path& cache, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(cache.parent_path(), error);
  const std::filesystem::path temporary = fmt::format("{}.{}", cache.string(), getpid());
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream << text;
    if (!stream.flush()) {
      std::filesystem::remove(temporary, error);
      return;
    }
  }
  std::filesystem::rename(temporary, cache, error);
  if (error) {
    std::filesystem::remove(temporary, error);
  }
}

// An absolute path from the environment, or empty. Nothing in Cairn changes the environment, so
// that reading it is safe.
std::string DirectoryFromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): see above
  return value != nullptr && *value == '/' ? value : "";
}

absl::StatusOr<std::string> FileDigest(const std::string& path,
                                       const std::string& cache_directory) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return ErrnoStatus(errno, fmt::format("open '{}' for its digest", path));
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("stat '{}' for its digest", path));
  }
  const std::string identity = FileIdentity(info);
  const std::filesystem::path cache = std::filesystem::path(cache_directory) /
                                      fmt::format("digest-{}-{}", info.st_dev, info.st_ino);
  if (!cache_directory.empty()) {
    const std::string cached = ReadCache(cache, identity);
    if (!cached.empty()) {
      return cached;
    }
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string digest, HashFile(file.get(), path));
  if (!cache_directory.empty()) {
    WriteCache(cache, CacheText(identity, digest));
  }
  return digest;
}

}  // namespace

std::string DefaultCacheDirectory() {
  const std::string cache = DirectoryFromEnvironment("XDG_CACHE_HOME");
  if (!cache.empty()) {
    return cache + "/cairn";
  }
  const std::string home = DirectoryFromEnvironment("HOME");
  return home.empty() ? "" : home + "/.cache/cairn";
}

absl::StatusOr<std::string> ModelDigest(const std::vector<std::string>& paths) {
  return ModelDigestWithCache(paths, DefaultCacheDirectory());
}

absl::StatusOr<std::string> ModelDigestWithCache(const std::vector<std::string>& paths,
                                                 const std::string& cache_directory) {
  CAIRN_CHECK(!paths.empty());
  if (paths.size() == 1) return FileDigest(paths.front(), cache_directory);
  std::string text(kPartsHeader);
  for (const std::string& path : paths) {
    CAIRN_ASSIGN_OR_RETURN(const std::string digest, FileDigest(path, cache_directory));
    text += digest;
  }
  std::string digest(kModelDigestBytes, '\0');
  if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                 EVP_sha256(), nullptr) != 1) {
    return Internal("hash the digests of the {} parts of '{}': OpenSSL refused", paths.size(),
                    paths.front());
  }
  return digest;
}

}  // namespace cairn::compute

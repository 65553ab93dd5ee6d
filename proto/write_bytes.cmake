# cmake -DIN=FILE -DOUT=HEADER -DNAME=NAME -P write_bytes.cmake: a header in which NAME is what the file holds.
file(READ ${IN} digits HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${digits}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#pragma once\n
namespace cairn::config {\n
inline constexpr unsigned char ${NAME}[] = {\n${bytes}};\n
}  // namespace cairn::config\n")

# A file as a C array: cmake -DFROM=file -DTO=file.c -DNAME=symbol -DHEADER=header -P embed.cmake
# With -DTEXT=1 a NUL follows the file.
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
if(TEXT)
    string(APPEND bytes "0x00,")
endif()
get_filename_component(from_name ${FROM} NAME)
file(WRITE ${TO} "/* ${from_name}, by cmake/embed.cmake. */
#include \"${HEADER}\"

const unsigned char ${NAME}[] = {
${bytes}
};
const size_t ${NAME}_bytes = sizeof ${NAME};
")

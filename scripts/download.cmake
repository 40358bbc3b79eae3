# download.cmake - fetch one file: cmake -DURL=... -DFILE=... -P download.cmake
#
# The first bytes are asked for first, under a short limit of time, so that a host which swallows
# packets costs seconds. After that only a transfer that stalls is given up.
#
# SPDX-License-Identifier: MIT
cmake_minimum_required(VERSION 3.25)

file(DOWNLOAD ${URL} "${FILE}" STATUS status TIMEOUT 10 RANGE_START 0 RANGE_END 15 TLS_VERIFY ON)
list(GET status 0 code)
if(code EQUAL 0)
    file(DOWNLOAD ${URL} "${FILE}" STATUS status INACTIVITY_TIMEOUT 60 TLS_VERIFY ON)
    list(GET status 0 code)
endif()
if(NOT code EQUAL 0)
    file(REMOVE "${FILE}")
    list(GET status 1 reason)
    message(FATAL_ERROR "reason: ${reason}")
endif()

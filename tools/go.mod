module github.com/runtime-watcher/runtime-watcher/tools

go 1.26.0

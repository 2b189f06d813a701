# Waits for the end of its standard input, which comes when the process at the other end closes it or dies, in whatever
# way. What is registered in the directory $1 then ends, and the directory goes.
trap '' HUP INT TERM
while read -r _; do :; done
rm -f "$1/open"
if [ -e "$1/pids" ]; then
	while read -r pid; do
		kill -s KILL -- "-$pid" 2>/dev/null
	done <"$1/pids"
fi
# A dying process may still write.
rm -rf "$1" || { sleep 1; rm -rf "$1"; }

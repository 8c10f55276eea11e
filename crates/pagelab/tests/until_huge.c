/* Touches 16 MiB and sleeps until one of its pages is huge: then it exits with 0, after two minutes with 3. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long huge_kilobytes(void)
{
	char line[256];
	long all = 0, one;
	FILE *file = fopen("/proc/self/smaps", "r");

	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "AnonHugePages: %ld", &one) == 1)
			all += one;
	if (file)
		fclose(file);
	return all;
}

int main(void)
{
	size_t bytes = 16 << 20;
	char *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (buffer == MAP_FAILED)
		return 2;
	memset(buffer, 1, bytes);
	for (int tenths = 0; tenths < 1200; tenths++) {
		if (huge_kilobytes() > 0)
			return 0;
		usleep(100000);
	}
	return 3;
}

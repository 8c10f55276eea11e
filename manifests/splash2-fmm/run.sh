# One run: FILES PARTICLES STEPS PROCESSORS
. "$1/shared.sh"
particles=$2 steps=$3 processors=$4
# Input as in the files of SPLASH-2's own directory `inputs`: two clusters or one, distribution, particles,
# precision, processors, steps, step, softening, and how the work is shared.
cat >input <<INPUT
one cluster
plummer
$particles
1e-6
$processors
$steps
.025
0.0
cost zones
INPUT
began=$(now)
$tied "$SPLASH_DIR/apps/fmm/FMM" <input >fmm.log 2>&1 || fail "FMM failed: $(tail -3 fmm.log)"
echo "time: $(seconds "$began" "$(now)") s"

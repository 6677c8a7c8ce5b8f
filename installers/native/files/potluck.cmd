@echo off
rem The command potluck. Python's own variables are another Python's.
setlocal
set "PYTHONHOME="
set "PYTHONPATH="
set "PYTHONSTARTUP="
set "PYTHONNOUSERSITE=1"
"%~dp0..\python\python.exe" -P -m potluck %*
